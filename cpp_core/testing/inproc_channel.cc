#include "testing/inproc_channel.h"

#include <algorithm>
#include <array>
#include <deque>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "base/duration.h"
#include "control/bitvector.h"
#include "testing/seeded_random.h"

namespace horocache::testing {

namespace {

using Words = std::vector<uint64_t>;
using SharedWords = std::shared_ptr<const Words>;

// A rank's words as one reader sees them.
struct Slot {
  bool filled = false;
  uint64_t round = 0;
  SharedWords words, payload;
};
struct View {
  SharedWords hint;  // null until first set
  std::array<Slot, 2> slots;
};

enum class Kind : uint8_t { kHint, kSnapshot, kFrame, kRing };

struct Event {
  int64_t due_ns = 0;
  uint64_t order = 0;  // of sending; breaks ties between events that are due at the same time
  int from = 0, to = 0;
  Kind kind = Kind::kRing;
  uint64_t round = 0;
  SharedWords words, payload;
  std::shared_ptr<std::string> frame;
};
struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return a.due_ns != b.due_ns ? a.due_ns > b.due_ns : a.order > b.order;
  }
};

}  // namespace

struct InprocNetwork::Impl {
  class Channel;

  explicit Impl(const InprocConfig& given);

  bool words_travel() const { return config.max_delay_ns > 0 && config.delay_words; }
  // `reader`'s view of `writer`. Where words are shared, there is one view per writer.
  View& view(int reader, int writer) {
    return views[words_travel() && reader != writer ? static_cast<size_t>(reader) * size + writer
                                                    : static_cast<size_t>(writer) * own_stride];
  }
  void Write(int from, Kind kind, uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload);
  void Post(Event event);
  void Deliver(Event& event);
  void MarkRung(int rank);

  InprocConfig config;
  size_t size;
  size_t own_stride;
  SeededRandom random;
  int64_t now_ns = 0;
  uint64_t order = 0, messages = 0, bytes = 0, rings = 0;
  std::vector<View> views;
  std::vector<int64_t> last_due_ns;  // per pair, so that no send overtakes an earlier one; empty without delays
  std::priority_queue<Event, std::vector<Event>, Later> under_way;
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<char> dead, rung, listed;
  std::vector<int> rung_ranks;  // each rank in `listed` once; TakeRung may have cleared its `rung` since
};

// One rank's end of the network. Owned by the network.
class InprocNetwork::Impl::Channel final : public control::ControlChannel {
 public:
  Channel(Impl* network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return network_->config.size; }

  void SetHint(std::span<const uint64_t> words) override { network_->Write(rank_, Kind::kHint, 0, words, {}); }

  void AndHints(std::vector<uint64_t>* out) override {
    static const Words kNeverSet{~uint64_t{0}};
    for (int writer = 0; writer < size(); ++writer) {
      const SharedWords& hint = network_->view(rank_, writer).hint;
      const Words& words = hint ? *hint : kNeverSet;
      if (writer == 0) {
        *out = words;
      } else {
        control::AndInto(words, out);
      }
    }
  }

  void Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) override {
    network_->Write(rank_, Kind::kSnapshot, round, words, payload);
    if (round != missing_round_) missing_ = 0;
  }

  bool HasPublished(int rank, uint64_t round) override {
    const View& view = network_->view(rank_, rank);
    return (view.slots[0].filled && view.slots[0].round >= round) ||
           (view.slots[1].filled && view.slots[1].round >= round);
  }

  bool AndSnapshots(uint64_t round, std::vector<uint64_t>* out) override {
    if (round != missing_round_) {
      missing_round_ = round;
      missing_ = 0;
    }
    // Ranks below missing_ have published, so repeated tests check each rank once.
    for (; missing_ < size(); ++missing_) {
      const Slot& slot = network_->view(rank_, missing_).slots[round & 1];
      if (!slot.filled || slot.round != round) return false;
    }
    for (int writer = 0; writer < size(); ++writer) {
      const Slot& slot = network_->view(rank_, writer).slots[round & 1];
      if (slot.round != round) return false;  // overwritten: the other ranks have left this round behind
      if (writer == 0) {
        *out = *slot.words;
      } else {
        control::AndInto(*slot.words, out);
      }
    }
    return true;
  }

  bool SharesBitvector(int) const override { return !network_->words_travel(); }
  bool ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) override {
    const Slot& slot = network_->view(rank_, rank).slots[round & 1];
    if (!slot.filled || slot.round != round) return false;
    *words = *slot.words;
    if (payload != nullptr) *payload = *slot.payload;
    return true;
  }

  void Send(int to, std::string_view frame) override {
    if (!network_->dead[static_cast<size_t>(rank_)]) outbox_.emplace_back(to, frame);
  }

  bool Receive(int* from, std::string* frame) override {
    if (inbox_.empty()) return false;
    *from = inbox_.front().first;
    frame->swap(*inbox_.front().second);
    inbox_.pop_front();
    return true;
  }

  bool Progress() override {
    if (outbox_.empty()) return false;
    for (auto& [to, frame] : outbox_) {
      ++network_->messages;
      network_->bytes += frame.size();
      Event event{.from = rank_, .to = to, .kind = Kind::kFrame};
      event.frame = std::make_shared<std::string>(std::move(frame));
      network_->Post(std::move(event));
    }
    outbox_.clear();
    return true;
  }

  void Ring(int rank) override {
    if (network_->dead[static_cast<size_t>(rank_)]) return;
    ++network_->rings;
    network_->Post(Event{.from = rank_, .to = rank, .kind = Kind::kRing});
  }

  void Arrive(int from, std::shared_ptr<std::string> frame) { inbox_.emplace_back(from, std::move(frame)); }
  void DropOutbox() { outbox_.clear(); }

 private:
  Impl* const network_;
  const int rank_;
  uint64_t missing_round_ = ~uint64_t{0};
  int missing_ = 0;
  std::deque<std::pair<int, std::string>> outbox_;
  std::deque<std::pair<int, std::shared_ptr<std::string>>> inbox_;
};

InprocNetwork::Impl::Impl(const InprocConfig& given)
    : config(given), size(static_cast<size_t>(given.size)), own_stride(1), random(given.seed) {
  if (words_travel()) own_stride = size + 1;  // the diagonal is each rank's view of itself
  views.resize(words_travel() ? size * size : size);
  if (config.max_delay_ns > 0) last_due_ns.resize(size * size, 0);
  dead.resize(size, 0);
  rung.resize(size, 0);
  listed.resize(size, 0);
  for (int rank = 0; rank < config.size; ++rank) channels.push_back(std::make_unique<Channel>(this, rank));
}

void InprocNetwork::Impl::Write(int from, Kind kind, uint64_t round, std::span<const uint64_t> words,
                                std::span<const uint64_t> payload) {
  if (dead[static_cast<size_t>(from)]) return;
  Event event{.from = from, .to = from, .kind = kind, .round = round};
  event.words = std::make_shared<const Words>(words.begin(), words.end());
  if (kind == Kind::kSnapshot) event.payload = std::make_shared<const Words>(payload.begin(), payload.end());
  Deliver(event);  // a rank sees its own words at once, and so does every rank where words are shared
  const uint64_t copies = words_travel() ? size - 1 : 1;
  messages += copies;
  bytes += copies * (words.size_bytes() + payload.size_bytes());
  if (!words_travel()) return;
  for (int to = 0; to < config.size; ++to) {
    if (to == from) continue;
    Event copy = event;
    copy.to = to;
    Post(std::move(copy));
  }
}

void InprocNetwork::Impl::Post(Event event) {
  if (config.max_delay_ns == 0) {
    Deliver(event);
    return;
  }
  int64_t& last = last_due_ns[static_cast<size_t>(event.from) * size + static_cast<size_t>(event.to)];
  last = std::max(last, now_ns + static_cast<int64_t>(random.Below(static_cast<uint64_t>(config.max_delay_ns) + 1)));
  event.due_ns = last;
  event.order = order++;
  under_way.push(std::move(event));
}

void InprocNetwork::Impl::Deliver(Event& event) {
  const auto to = static_cast<size_t>(event.to);
  if (dead[static_cast<size_t>(event.from)] || dead[to]) return;
  switch (event.kind) {
    case Kind::kHint:
      view(event.to, event.from).hint = event.words;
      break;
    case Kind::kSnapshot:
      view(event.to, event.from).slots[event.round & 1] = Slot{true, event.round, event.words, event.payload};
      break;
    case Kind::kFrame:
      channels[to]->Arrive(event.from, std::move(event.frame));
      break;
    case Kind::kRing:
      break;
  }
  // A rank's own words do not wake it.
  const bool words = event.kind == Kind::kHint || event.kind == Kind::kSnapshot;
  if (!words || event.from != event.to) MarkRung(event.to);
}

void InprocNetwork::Impl::MarkRung(int rank) {
  rung[static_cast<size_t>(rank)] = 1;
  if (std::exchange(listed[static_cast<size_t>(rank)], 1) == 0) rung_ranks.push_back(rank);
}

InprocNetwork::InprocNetwork(InprocConfig config) : impl_(std::make_unique<Impl>(config)) {}
InprocNetwork::~InprocNetwork() = default;

control::ControlChannel& InprocNetwork::channel(int rank) { return *impl_->channels[static_cast<size_t>(rank)]; }

void InprocNetwork::AdvanceTo(int64_t now_ns) {
  impl_->now_ns = std::max(impl_->now_ns, now_ns);
  while (!impl_->under_way.empty() && impl_->under_way.top().due_ns <= impl_->now_ns) {
    Event event = impl_->under_way.top();
    impl_->under_way.pop();
    impl_->Deliver(event);
  }
}

int64_t InprocNetwork::NextDeliveryNs() const {
  return impl_->under_way.empty() ? kNever : impl_->under_way.top().due_ns;
}

bool InprocNetwork::TakeRung(int rank) { return std::exchange(impl_->rung[static_cast<size_t>(rank)], 0) != 0; }

bool InprocNetwork::NextRung(int* rank) {
  while (!impl_->rung_ranks.empty()) {
    *rank = impl_->rung_ranks.back();
    impl_->rung_ranks.pop_back();
    impl_->listed[static_cast<size_t>(*rank)] = 0;
    if (TakeRung(*rank)) return true;
  }
  return false;
}

void InprocNetwork::Kill(int rank) {
  impl_->dead[static_cast<size_t>(rank)] = 1;
  impl_->channels[static_cast<size_t>(rank)]->DropOutbox();
}

uint64_t InprocNetwork::messages() const { return impl_->messages; }
uint64_t InprocNetwork::bytes() const { return impl_->bytes; }
uint64_t InprocNetwork::rings() const { return impl_->rings; }

}  // namespace horocache::testing
