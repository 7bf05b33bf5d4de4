// Horovod's first design: every rank sends what it has to rank 0, which counts and answers everybody. One message up
// and one down per rank and round, all of them through rank 0, whose work grows with the number of ranks. With the
// cache on a rank sends cache positions, else whole requests. It exists to be measured; see
// docs/explanation/agreement.md.
#include "control/agreements/relay.h"
#include "control/agreements/strategies.h"

namespace horocache::control {

std::unique_ptr<Agreement> MakeCoordinatorAgreement(const AgreementConfig&) {
  return std::make_unique<RelayAgreement>(
      RelayOptions{.shape = RelayOptions::Shape::kStar, .with_requests = true, .merge = false});
}

}  // namespace horocache::control
