// The hints of "bits": what a rank shows the other ranks before a round, and when it flushes its submissions. See Note
// [When a round happens] in agreement.h.
#include <algorithm>
#include <utility>

#include "control/bitvector.h"
#include "control/strategies/bitvector_agreement.h"

namespace horocache::control {
namespace {

// The time between two flushes while other ranks wait, in ns. The waiting ranks soon get what they wait for, yet a rank
// that still computes is not slowed down by a round for each of its gradients.
constexpr int64_t kHurriedNs = 300'000;

}  // namespace

bool BitvectorAgreement::FlushIsDue(const Controller& controller, int64_t now_ns) const {
  return controller.HasUnflushed() && now_ns >= FlushNs(controller);
}

bool BitvectorAgreement::OthersWait() const { return (Bitvector(hint_and_).raised() & kWaiting) != 0; }

bool BitvectorAgreement::OthersGather() const { return (Bitvector(hint_and_).raised() & kGatherFlags) != 0; }

// True if a rank that begins to wait has to ring this rank. Once this rank knows of another one that waits, it already
// flushes at the shorter interval.
bool BitvectorAgreement::Lingers(const Controller& controller) const {
  return controller.HasUnflushed() && !OthersWait();
}

// True if this rank may flush now. While requests are gathered it does not: it waits for the end of the gather.
bool BitvectorAgreement::MayFlush() const { return state_ == State::kOpen || state_ == State::kPublished; }

// The latest time at which the submissions are flushed.
int64_t BitvectorAgreement::FlushNs(const Controller& controller) const {
  if (OthersGather() || controller.HasFullFlush()) return controller.UnflushedSinceNs();
  const int64_t usual_ns = controller.UnflushedSinceNs() + controller.config().cycle_time_ns;
  return OthersWait() ? std::min(usual_ns, flushed_ns_ + kHurriedNs) : usual_ns;
}

bool BitvectorAgreement::RefreshHint(const Controller& controller, ControlChannel& channel, bool lingering) {
  controller.HintBitvector(lingering, &scratch_);
  if (scratch_ == hint_) return false;
  std::swap(scratch_, hint_);
  channel.SetHint(hint_);
  return true;
}

void BitvectorAgreement::Flush(Controller& controller, int64_t now_ns) {
  controller.Flush();
  flushed_ns_ = now_ns;
  ResetPause(now_ns);
}

bool BitvectorAgreement::Observe(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  // An urgent flush is due regardless of the other ranks' hints, so it happens at once.
  const bool urgent = controller.waiting() || controller.Raised() != 0 || channel.size() == 1;
  if (urgent && controller.HasUnflushed()) Flush(controller, now_ns);
  bool shown = RefreshHint(controller, channel, Lingers(controller));
  // Read after setting: of two ranks that do so at the same time, at least one sees the other's hint.
  channel.AndHints(&hint_and_);
  if (Lingers(controller) && RefreshHint(controller, channel, true)) {
    shown = true;
    channel.AndHints(&hint_and_);
  }
  // The flush happens in the next step, before which the runtime takes the queued submissions once more. So all that a
  // program had submitted when other ranks began to wait is flushed together, even if this thread lost its core in
  // between.
  const bool due = FlushIsDue(controller, now_ns);
  if (due && flushes_next_) {
    Flush(controller, now_ns);
    shown |= RefreshHint(controller, channel, false);
    channel.AndHints(&hint_and_);
  }
  flushes_next_ = due && !flushes_next_;
  return RaiseIfStuck(controller, channel) || shown;
}

// Raises kStalled if every thread of every rank waits and no operation is pending on all of them: some ranks are stuck
// for good. True if the hint has changed.
bool BitvectorAgreement::RaiseIfStuck(Controller& controller, ControlChannel& channel) {
  const Bitvector all(hint_and_);
  if (!all.all_wait() || all.any_cache_bit() || !controller.HasPending() || OthersGather() || controller.HasUnflushed())
    return false;
  controller.RaiseStalled();
  if (!RefreshHint(controller, channel, false)) return false;
  channel.AndHints(&hint_and_);
  return true;
}

}  // namespace horocache::control
