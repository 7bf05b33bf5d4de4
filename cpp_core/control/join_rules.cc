#include "control/join_rules.h"

#include "control/signature.h"

namespace horocache::control {

Status CheckJoined(const wire::Signature& signature, const RankSet& joined) {
  if (joined.empty()) return Status::Ok();
  const std::string who = RankText(joined.ToVector()) + (joined.count() == 1 ? " has" : " have") + " joined";
  switch (signature.op) {
    case wire::Op::kAllreduce:
    case wire::Op::kAllgather:
    case wire::Op::kReducescatter:
      return Status::Ok();
    case wire::Op::kBroadcast:
      if (!joined.Has(signature.root)) return Status::Ok();
      return {StatusCode::kUnsupported, Describe(signature) + ": its root, rank " + std::to_string(signature.root) +
                                            ", has joined and has nothing to send. Broadcast from a rank that has not "
                                            "joined, or before join()."};
    default:
      return {StatusCode::kUnsupported,
              Describe(signature) + " cannot run while " + who +
                  ": only allreduce, allgather, reducescatter and broadcast can do without a rank's data. Run it "
                  "before join()."};
  }
}

}  // namespace horocache::control
