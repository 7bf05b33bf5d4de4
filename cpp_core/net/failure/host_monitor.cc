#include "net/failure/host_monitor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "net/bootstrap/handshake.h"

namespace horocache::net {
namespace {

// Interval between two steps, which read the clocks of this host and the link.
constexpr int64_t kWatchNs = 10 * kNsPerMs;
// A rank that has not stepped for this long does not run. A sleeping rank steps every 100 ms.
constexpr int64_t kNotRunningNs = 500 * kNsPerMs;
// Intervals between two reports: while ranks of the host do not run, and where silence does not count as a loss.
constexpr int64_t kStoppedReportNs = 250 * kNsPerMs;
constexpr int64_t kUnjudgedReportNs = kNsPerS;
// How long the report on a lost rank may delay the error on its own host.
constexpr int64_t kLastReportNs = 200 * kNsPerMs;
constexpr int64_t kReportNapNs = 50 * kNsPerUs;
constexpr size_t kMostLostTold = 16;  // lost ranks in one report

struct ReportHead {
  uint32_t stopped = 0;  // number of StoppedEntry that follow
  uint32_t lost = 0;     // number of LostEntry after those
};
struct StoppedEntry {
  uint32_t rank = 0;
  uint32_t unused = 0;
  int64_t for_ns = 0;
};
struct LostEntry {
  uint32_t rank = 0;
  uint32_t bytes = 0;  // bytes of the encoded Status that follows
};

template <typename T>
void AppendBytes(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes a value from the front; false if there are too few bytes.
template <typename T>
bool TakeBytes(std::string_view* rest, T* value) {
  if (rest->size() < sizeof(T)) return false;
  std::memcpy(value, rest->data(), sizeof(T));
  rest->remove_prefix(sizeof(T));
  return true;
}

}  // namespace

HostMonitor::HostMonitor(HostMonitorConfig config, std::unique_ptr<Link> link, int64_t now_ns)
    : config_(std::move(config)),
      link_(std::move(link)),
      own_host_(config_.host_of[static_cast<size_t>(config_.rank)]),
      lost_(config_.host_of.size()) {
  for (size_t rank = 0; rank < config_.host_of.size(); ++rank) {
    const auto host = static_cast<size_t>(config_.host_of[rank]);
    hosts_.resize(std::max(hosts_.size(), host + 1));
    hosts_[host].ranks.push_back(static_cast<int>(rank));
  }
  for (Host& host : hosts_) host.heard_ns = now_ns;
  for (size_t at = 0; at < HostAt(own_host_).ranks.size(); ++at) {
    // A rank that has not run yet gets the time at which the first HostMonitor on its host was made.
    int64_t never = 0;
    config_.arena->ran_ns(static_cast<int>(at)).compare_exchange_strong(never, now_ns);
  }
}

bool HostMonitor::Step(int64_t now_ns) {
  if (now_ns - looked_ns_ < kWatchNs) return false;
  LookAround(now_ns);
  SpeakIfDue(now_ns);
  Listen(now_ns);
  Judge(now_ns);
  looked_ns_ = now_ns;
  return !losses_.empty();
}

void HostMonitor::LookAround(int64_t now_ns) {
  const std::vector<int>& here = HostAt(own_host_).ranks;
  int lowest = -1;
  for (size_t at = 0; at < here.size(); ++at) {
    const int rank = here[at], seat = static_cast<int>(at);
    std::atomic<int64_t>& ran_ns = config_.arena->ran_ns(seat);
    if (rank == config_.rank) ran_ns.store(now_ns, std::memory_order_relaxed);
    const int64_t seen_ns = ran_ns.load(std::memory_order_relaxed);
    const bool gone = lost_[static_cast<size_t>(rank)] || HasLeft(config_.arena->state(seat).load());
    const bool runs = rank == config_.rank || now_ns - seen_ns < kNotRunningNs;
    if (gone || runs) {
      stopped_since_ns_.erase(rank);
    } else {
      stopped_since_ns_[rank] = seen_ns;
    }
    if (!gone && runs && lowest < 0) lowest = rank;
  }
  speaker_ = lowest == config_.rank;
}

void HostMonitor::SpeakIfDue(int64_t now_ns) {
  if (!speaker_) return;
  const auto here = [this](const auto& stopped) { return IsHere(stopped.first); };
  const bool any_stopped = std::ranges::any_of(stopped_since_ns_, here);
  const int64_t usual_ns = config_.silence_ns > 0 ? config_.silence_ns / 3 : kUnjudgedReportNs;
  if (unreported_ || now_ns - spoke_ns_ >= (any_stopped ? std::min(kStoppedReportNs, usual_ns) : usual_ns))
    Speak(now_ns);
}

void HostMonitor::Speak(int64_t now_ns) {
  ReportHead head;
  std::string stopped, lost;
  for (const auto& [rank, since_ns] : stopped_since_ns_) {
    if (!IsHere(rank)) continue;
    AppendBytes(&stopped, StoppedEntry{.rank = static_cast<uint32_t>(rank), .for_ns = now_ns - since_ns});
    ++head.stopped;
  }
  for (const auto& [rank, why] : reported_) {
    const LostEntry entry{static_cast<uint32_t>(rank), static_cast<uint32_t>(why.size())};
    const size_t bytes = sizeof(head) + stopped.size() + lost.size() + sizeof(entry) + why.size();
    if (head.lost == kMostLostTold || bytes > link_->max_frame_bytes()) break;
    AppendBytes(&lost, entry);
    lost += why;
    ++head.lost;
  }
  const std::string body = stopped + lost;
  for (int to = 0; to < link_->size(); ++to) {
    // If the link has no room, the next report repeats this one.
    if (IsHere(to) || link_->HasLeft(to)) continue;
    link_->TrySend(to, std::as_bytes(std::span(&head, 1)), std::as_bytes(std::span(body)));
  }
  unreported_ = false;
  spoke_ns_ = now_ns;
}

void HostMonitor::NoteLost(int rank, const Status& why, int64_t now_ns) {
  if (lost_[static_cast<size_t>(rank)]) return;
  lost_[static_cast<size_t>(rank)] = true;
  reported_.emplace_back(rank, EncodeStatus(why));
  unreported_ = true;
  LookAround(now_ns);
  if (!speaker_) return;
  Speak(now_ns);
  // The program may end as soon as it sees the error, and the library with it.
  const int64_t deadline_ns = now_ns + kLastReportNs;
  while (link_->sending() && link_->broken().ok() && NowNs() < deadline_ns) {
    Listen(NowNs());
    Nap(kReportNapNs);
  }
}

void HostMonitor::Listen(int64_t now_ns) {
  link_->Receive([&](int from, std::span<const std::byte> frame) { OnFrame(from, frame, now_ns); });
}

void HostMonitor::OnFrame(int from, std::span<const std::byte> frame, int64_t now_ns) {
  const int host = HostOf(from);
  HostAt(host).heard_ns = now_ns;
  std::string_view rest(reinterpret_cast<const char*>(frame.data()), frame.size());
  const auto bad = [&] {
    Lose(from, {StatusCode::kCorrupt,
                Name(config_.rank) + " got from " + Name(from) + " a report on its host's ranks that does not decode"});
  };
  const auto is_theirs = [&](uint32_t rank) {
    return rank < config_.host_of.size() && HostOf(static_cast<int>(rank)) == host;
  };
  ReportHead head;
  if (!TakeBytes(&rest, &head)) return bad();
  std::erase_if(stopped_since_ns_, [&](const auto& entry) { return HostOf(entry.first) == host; });
  for (uint32_t i = 0; i < head.stopped; ++i) {
    StoppedEntry entry;
    if (!TakeBytes(&rest, &entry) || !is_theirs(entry.rank)) return bad();
    stopped_since_ns_[static_cast<int>(entry.rank)] = now_ns - entry.for_ns;
  }
  for (uint32_t i = 0; i < head.lost; ++i) {
    LostEntry entry;
    if (!TakeBytes(&rest, &entry) || !is_theirs(entry.rank) || entry.bytes > rest.size()) return bad();
    const std::optional<Status> why = DecodeStatus(rest.substr(0, entry.bytes));
    if (!why || why->ok()) return bad();
    rest.remove_prefix(entry.bytes);
    Lose(static_cast<int>(entry.rank), *why);
  }
}

void HostMonitor::Judge(int64_t now_ns) {
  if (!link_->broken().ok()) {
    for (int rank = 0; rank < link_->size(); ++rank) {
      if (!IsHere(rank)) Lose(rank, link_->broken());
    }
    return;
  }
  if (config_.silence_ns == 0) return;
  const int64_t interval_ns = config_.silence_ns / 3;
  for (int number = 0; number < static_cast<int>(hosts_.size()); ++number) {
    Host& host = HostAt(number);
    const auto has_left = [this](int rank) { return link_->HasLeft(rank); };
    if (number == own_host_ || host.lost || std::ranges::all_of(host.ranks, has_left)) continue;
    // This rank was stopped itself for a while, so reports that arrived meanwhile are still unread.
    if (now_ns - looked_ns_ > interval_ns) host.heard_ns = std::max(host.heard_ns, now_ns - interval_ns);
    if (now_ns - host.heard_ns < config_.silence_ns) continue;
    host.lost = true;
    for (const int rank : host.ranks) Lose(rank, {StatusCode::kPeerLost, Silence(number)});
  }
}

std::string HostMonitor::Silence(int number) const {
  const Host& host = hosts_[static_cast<size_t>(number)];
  const bool one = host.ranks.size() == 1;
  return Name(host.ranks[0]) + (one ? " has" : " and the other ranks of its host have") +
         " not been heard of over MPI for " + SecondsText(config_.silence_ns) + " on the host of " +
         Name(hosts_[static_cast<size_t>(own_host_)].ranks[0]) + ": " + (one ? "it, its" : "that") +
         " host or the network between the two is gone";
}

void HostMonitor::Lose(int rank, Status why) {
  if (lost_[static_cast<size_t>(rank)]) return;
  lost_[static_cast<size_t>(rank)] = true;
  stopped_since_ns_.erase(rank);
  losses_.push_back({rank, std::move(why)});
}

bool HostMonitor::NextLoss(Loss* loss) {
  if (losses_.empty()) return false;
  *loss = std::move(losses_.front());
  losses_.pop_front();
  return true;
}

std::vector<int> HostMonitor::NotRunning(int64_t now_ns, int64_t for_ns) const {
  std::vector<int> ranks;
  for (const auto& [rank, since_ns] : stopped_since_ns_) {
    if (now_ns - since_ns >= for_ns) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace horocache::net
