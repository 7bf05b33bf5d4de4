// What a rank of "bits" shows the others before a round, and when it shows what was submitted; see Note [When a round
// happens] in agreement.h.
#include <algorithm>
#include <utility>

#include "control/agreements/bits.h"
#include "control/words.h"

namespace horocache::control {
namespace {

// Between two flushes while other ranks wait: they get what they wait for soon, yet a rank that still computes is not
// held up by a round for each of its gradients.
constexpr int64_t kHurriedNs = 300'000;

}  // namespace

bool BitsAgreement::FlushIsDue(const Controller& controller, int64_t now_ns) const {
  return controller.HasUnflushed() && now_ns >= FlushNs(controller);
}

bool BitsAgreement::OthersWait() const {
  return !hint_and_.empty() && (DecodeFlags(hint_and_[kFlagWord]) & kWaiting) != 0;
}

bool BitsAgreement::OthersGather() const {
  return !hint_and_.empty() && (DecodeFlags(hint_and_[kFlagWord]) & kGatherFlags) != 0;
}

// Whether who begins to wait has to say so: a rank that knows of others that wait is hurrying already.
bool BitsAgreement::Lingers(const Controller& controller) const { return controller.HasUnflushed() && !OthersWait(); }

// While requests are gathered nothing is flushed: the end of the gather is what to wait for.
bool BitsAgreement::MayFlush() const { return state_ == State::kOpen || state_ == State::kPublished; }

// When what was submitted is flushed at the latest.
int64_t BitsAgreement::FlushNs(const Controller& controller) const {
  if (OthersGather()) return controller.UnflushedSinceNs();
  const int64_t usual_ns = controller.UnflushedSinceNs() + controller.config().cycle_time_ns;
  return OthersWait() ? std::min(usual_ns, flushed_ns_ + kHurriedNs) : usual_ns;
}

bool BitsAgreement::RefreshHint(const Controller& controller, ControlChannel& channel, bool lingering) {
  controller.HintWords(lingering, &scratch_);
  if (scratch_ == hint_) return false;
  std::swap(scratch_, hint_);
  channel.SetHint(hint_);
  return true;
}

void BitsAgreement::Flush(Controller& controller, int64_t now_ns) {
  controller.Flush();
  flushed_ns_ = now_ns;
  ResetPause(now_ns);
}

bool BitsAgreement::Observe(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  // Due whatever the others say, and so shown at once.
  const bool urgent = controller.waiting() || controller.Raised() != 0 || channel.size() == 1;
  if (urgent && controller.HasUnflushed()) Flush(controller, now_ns);
  bool shown = RefreshHint(controller, channel, Lingers(controller));
  // Read after setting: of two ranks that do so, one sees the other.
  channel.HintAnd(&hint_and_);
  if (Lingers(controller) && RefreshHint(controller, channel, true)) {
    shown = true;
    channel.HintAnd(&hint_and_);
  }
  // In the next step, before which submissions are taken once more: what a program had submitted when others began to
  // wait goes together then, also where this thread lost its core between the two.
  const bool due = FlushIsDue(controller, now_ns);
  if (due && flushes_next_) {
    Flush(controller, now_ns);
    shown |= RefreshHint(controller, channel, false);
    channel.HintAnd(&hint_and_);
  }
  flushes_next_ = due && !flushes_next_;
  return RaiseIfStuck(controller, channel) || shown;
}

// Every thread of every rank waits, and no operation is on all of them: some are stuck for good. True if it was shown.
bool BitsAgreement::RaiseIfStuck(Controller& controller, ControlChannel& channel) {
  const bool all_wait = (hint_and_[kFlagWord] & kAllWaitBit) != 0 && !AnyBit(hint_and_);
  if (!all_wait || !controller.HasPending() || OthersGather() || controller.HasUnflushed()) return false;
  controller.RaiseStalled();
  if (!RefreshHint(controller, channel, false)) return false;
  channel.HintAnd(&hint_and_);
  return true;
}

}  // namespace horocache::control
