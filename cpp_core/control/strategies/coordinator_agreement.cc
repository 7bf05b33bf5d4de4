// Horovod's first design: every rank sends its pending requests to rank 0, which counts them and answers all ranks.
// Each round takes one message up and one down per rank, all of them through rank 0, whose work grows with the number
// of ranks. With the cache on, a rank sends cache positions, otherwise whole requests. This strategy exists for
// comparison; see docs/explanation/agreement.md.
#include "control/strategies/relay.h"
#include "control/strategies/strategies.h"

namespace horocache::control {

std::unique_ptr<Agreement> MakeCoordinatorAgreement(const AgreementConfig&) {
  return std::make_unique<RelayAgreement>(
      RelayOptions{.shape = RelayOptions::Shape::kStar, .with_requests = true, .merge = false});
}

}  // namespace horocache::control
