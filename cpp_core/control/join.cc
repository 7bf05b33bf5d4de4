#include "control/join.h"

#include "control/signature.h"

namespace horocache::control {

// Reductions leave joined ranks out, gathers take no rows from them, and a barrier counts them as arrived. Only a root
// cannot be replaced, so an operation fails if its root has joined. A joined rank cannot vote, so changes of process
// sets (kRegister) fail, too.
Status CheckJoined(const wire::Signature& signature, const RankSet& joined, const RankNames& names) {
  if (signature.op == wire::Op::kRegister && !joined.empty()) {
    return UnsupportedError(Describe(signature) + ": " + names.Text(joined.ToVector()) +
                            " joined, and takes no part. Add and remove process sets before join(), or after it.");
  }
  if (joined.empty() || !wire::HasRoot(signature.op) || !joined.Has(signature.root)) return Status::Ok();
  const bool gives = signature.op == wire::Op::kBroadcast || signature.op == wire::Op::kScatter;
  return {StatusCode::kUnsupported, Describe(signature) + names.OfSet() + ": its root, " + names.Text(signature.root) +
                                        ", has joined and " + (gives ? "has nothing to send" : "takes no result") +
                                        ". Use a root that has not joined, or call it before join()."};
}

}  // namespace horocache::control
