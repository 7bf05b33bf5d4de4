// Undelivered messages: a rank leaves, the job is lost, or a message waits for too long.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "runtime/p2p/engine.h"
#include "runtime/p2p/message_operation.h"

namespace horocache::runtime {
namespace {

// How many messages a report names; it only counts the others.
constexpr size_t kMostNamed = 4;
// Limit of receive calls that take the frames of a departed rank before it counts as gone. Other ranks keep sending
// meanwhile.
constexpr int kMaxReceiveCalls = 1000;

}  // namespace

// ---- leaving

void PointToPoint::Leave(int64_t now_ns) {
  now_ns_ = now_ns;
  if (!failed_.ok() || std::exchange(leaving_, true)) return;
  std::vector<Pending> pending;
  FindPending(&pending);
  for (const Pending& one : pending) {
    if (one.stage == Stage::kQueued || one.stage == Stage::kSending) continue;  // these need no recv or send any more
    Abandon(one);
    Finish(one.operation,
           {StatusCode::kShutDown, "horocache was shut down on rank " + std::to_string(config_.rank) + " while " +
                                       DescribeMessage(*one.operation) + " was pending there."});
  }
  for (size_t rank = 0; rank < peers_.size(); ++rank) Activate(static_cast<int>(rank));
}

void PointToPoint::EndSet(uint32_t process_set, const std::string& why, int64_t now_ns) {
  if (!failed_.ok()) return;
  now_ns_ = now_ns;
  std::vector<Pending> pending;
  FindPending(&pending);
  for (const Pending& one : pending) {
    if (one.operation->process_set != process_set) continue;
    if (one.stage != Stage::kAnnounced && one.stage != Stage::kPosted) continue;  // these need no partner any more
    Abandon(one);
    Finish(one.operation, {StatusCode::kShutDown, why + " while " + DescribeMessage(*one.operation) +
                                                      " was pending on rank " + std::to_string(config_.rank) + "."});
  }
  queues_.DropArrivals(
      process_set, [this](int source, size_t bytes) { GiveBack(source, static_cast<int64_t>(bytes) + kKeepBytes); });
}

bool PointToPoint::HasLeft() const {
  if (!failed_.ok()) return true;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (static_cast<int>(rank) != config_.rank && !peer.sent_farewell && !peer.left) return false;
  }
  return leaving_;
}

// If the job has ended on all ranks, the peers say goodbye as well.
void PointToPoint::SayGoodbye() {
  const StatusCode end = failed_.code();
  if (end != StatusCode::kOk && end != StatusCode::kShutDown && end != StatusCode::kAborted) return;
  for (const auto& link : config_.links) link->SayGoodbye();
}

// Closes a peer that has left: it sends and takes nothing more.
void PointToPoint::Close(int rank) {
  Peer& peer = PeerOf(rank);
  if (std::exchange(peer.left, true)) return;
  std::vector<Operation*> ended;
  queues_.Close(rank, &ended);
  for (const Outgoing& outgoing : peer.queue) {
    if (outgoing.eager != nullptr) ended.push_back(outgoing.eager);
  }
  for (const auto& [id, sending] : peer.sending) ended.push_back(sending.operation);
  for (const auto& [id, receiving] : peer.receiving) {
    if (receiving.operation != nullptr) ended.push_back(receiving.operation);
  }
  peer.queue.clear();
  peer.sending.clear();
  peer.ready.clear();
  peer.receiving.clear();
  for (Operation* operation : ended) {
    Finish(operation,
           {StatusCode::kShutDown, "rank " + std::to_string(rank) + " shut down while " + DescribeMessage(*operation) +
                                       " was pending on rank " + std::to_string(config_.rank) + "."});
  }
}

void PointToPoint::LookForLeft() {
  if (!config_.has_left || (pending_ == 0 && !leaving_)) return;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const auto rank = static_cast<int>(i);
    if (rank == config_.rank || peers_[i].left || !config_.has_left(rank)) continue;
    if (ReceiveAll()) Close(rank);
  }
}

// Takes all frames that have arrived; false if frames keep coming.
bool PointToPoint::ReceiveAll() {
  for (int looks = 0; looks < kMaxReceiveCalls; ++looks) {
    if (!broken_.ok() || !Receive()) return true;
  }
  return false;
}

void PointToPoint::EndWith(const Status& why, int64_t now_ns) {
  if (!failed_.ok()) return;
  now_ns_ = now_ns;
  if (broken_.ok()) ReceiveAll();
  failed_ = why;
  std::vector<Pending> pending;
  FindPending(&pending);
  queues_.Clear();
  for (Peer& peer : peers_) peer = Peer();
  active_.clear();
  next_check_ns_ = kNever;
  for (const Pending& one : pending) {
    Finish(one.operation, {why.code(), Sentence(why.message()) + " " + DescribeMessage(*one.operation) +
                                           " was pending on rank " + std::to_string(config_.rank) + "."});
  }
}

void PointToPoint::OnRefuse(int from, const FrameHead& head) {
  Peer& peer = PeerOf(from);
  const auto found = peer.receiving.find(head.id);
  if (found == peer.receiving.end()) {
    Break(from, "it takes back message " + std::to_string(head.id) + ", which this rank does not expect");
    return;
  }
  Operation* receive = found->second.operation;
  peer.receiving.erase(found);
  if (receive == nullptr) return;
  Finish(receive, {StatusCode::kStall, DescribeMessage(*receive) + " on rank " + std::to_string(config_.rank) +
                                           ": rank " + std::to_string(from) +
                                           " had given its send up: no receive came for "
                                           "HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS, or it removed the process set."});
}

// ---- pending operations

bool PointToPoint::Transferring() const {
  return !active_.empty() || std::ranges::any_of(peers_, [](const Peer& peer) { return !peer.receiving.empty(); });
}

void PointToPoint::FindPending(std::vector<Pending>* out) const {
  queues_.ForEachPosted([out](const MessageKey&, Operation* receive) {
    out->push_back({receive, Stage::kPosted, receive->submitted_ns});
  });
  for (const Peer& peer : peers_) {
    for (const Outgoing& outgoing : peer.queue) {
      if (outgoing.eager == nullptr) continue;
      out->push_back({outgoing.eager, Stage::kQueued, outgoing.eager->submitted_ns});
    }
    for (const auto& [id, sending] : peer.sending) {
      out->push_back({sending.operation, sending.granted ? Stage::kSending : Stage::kAnnounced, sending.moved_ns, id});
    }
    for (const auto& [id, receiving] : peer.receiving) {
      if (receiving.operation == nullptr) continue;
      out->push_back({receiving.operation, Stage::kReceiving, receiving.moved_ns, id});
    }
  }
}

// Removes the state of an operation that is about to finish early.
void PointToPoint::Abandon(const Pending& pending) {
  const int rank = PeerRank(*pending.operation);
  Peer& peer = PeerOf(rank);
  switch (pending.stage) {
    case Stage::kQueued:
      peer.credit += static_cast<int64_t>(BytesOf(*pending.operation)) + kKeepBytes;
      std::erase_if(peer.queue, [&](const Outgoing& outgoing) { return outgoing.eager == pending.operation; });
      return;
    case Stage::kAnnounced:
      peer.sending.erase(pending.id);  // a later grant will be refused
      return;
    case Stage::kSending:
      peer.sending.erase(pending.id);
      std::erase(peer.ready, pending.id);
      Queue(rank, {.kind = FrameKind::kRefuse, .id = pending.id});
      return;
    case Stage::kPosted:
      queues_.Withdraw(KeyOf(*pending.operation), pending.operation);
      return;
    case Stage::kReceiving:
      peer.receiving.at(pending.id).operation = nullptr;  // later payload is dropped
      return;
  }
}

// ---- waiting for too long

int64_t PointToPoint::FailNs(const Pending& pending) const {
  int64_t since_ns = pending.since_ns;
  // A peer that computes may still post the other side of the message. A transfer needs none of the program's threads.
  const bool awaits_peer = pending.stage == Stage::kPosted || pending.stage == Stage::kAnnounced;
  if (awaits_peer && !config_.stall_fail_computing && config_.computed_ns)
    since_ns = std::max(since_ns, config_.computed_ns(PeerRank(*pending.operation)));
  return since_ns + config_.stall_fail_ns;
}

// A patient recv may wait for its send as long as it likes. Later its data may be under way, and late.
void PointToPoint::LeaveOutPatient(std::vector<Pending>* pending) {
  const auto may_wait = [](const Pending& one) { return one.operation->patient && one.stage == Stage::kPosted; };
  if (std::erase_if(*pending, may_wait) > 0) next_check_ns_ = now_ns_ + config_.stall_warn_ns;
}

void PointToPoint::Check(int64_t now_ns) {
  now_ns_ = now_ns;
  if (!failed_.ok()) return;
  LookForLeft();
  if (now_ns < next_check_ns_) return;
  std::vector<Pending> pending;
  FindPending(&pending);
  next_check_ns_ = kNever;
  std::string text;
  size_t late = 0;
  LeaveOutPatient(&pending);
  for (const Pending& one : pending) {
    const int64_t waited_ns = now_ns - one.since_ns;
    if (config_.stall_fail_ns > 0 && now_ns >= FailNs(one)) {
      const std::string why = StallText(one, now_ns);
      Abandon(one);
      Finish(one.operation, {StatusCode::kStall, why + " Gave up after HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS."});
      continue;
    }
    if (config_.stall_fail_ns > 0) next_check_ns_ = std::min(next_check_ns_, FailNs(one));
    if (waited_ns < config_.stall_warn_ns) {
      next_check_ns_ = std::min(next_check_ns_, one.since_ns + config_.stall_warn_ns);
      continue;
    }
    if (++late <= kMostNamed) text += (text.empty() ? "" : " ") + StallText(one, now_ns);
  }
  if (late == 0) return;
  const bool due = now_ns >= next_warning_ns_;
  if (due) next_warning_ns_ = now_ns + config_.stall_warn_ns;
  next_check_ns_ = std::min(next_check_ns_, next_warning_ns_);
  if (!due) return;
  if (late > kMostNamed) text += " And " + std::to_string(late - kMostNamed) + " more.";
  reports_.push_back(std::move(text));
}

std::string PointToPoint::StallText(const Pending& pending, int64_t now_ns) const {
  const std::string peer = "rank " + std::to_string(PeerRank(*pending.operation));
  std::string what;
  switch (pending.stage) {
    case Stage::kQueued:
      what = peer + " takes no messages (stopped, or without processor time?).";
      break;
    case Stage::kAnnounced:
      what = peer + " has not posted a recv for it.";
      break;
    case Stage::kSending:
      what = peer + " has stopped taking its data (stopped, or without processor time?).";
      break;
    case Stage::kPosted:
      what = peer + " has not sent such a message.";
      break;
    case Stage::kReceiving:
      what = peer + " has stopped sending its data (stopped, or without processor time?).";
      break;
  }
  const int64_t waited_ns = (now_ns - pending.since_ns) / kNsPerMs * kNsPerMs;
  return DescribeMessage(*pending.operation) + " has waited for " + SecondsText(waited_ns) + " on rank " +
         std::to_string(config_.rank) + ": " + what;
}

bool PointToPoint::NextReport(std::string* text) {
  if (reports_.empty()) return false;
  *text = std::move(reports_.front());
  reports_.pop_front();
  return true;
}

}  // namespace horocache::runtime
