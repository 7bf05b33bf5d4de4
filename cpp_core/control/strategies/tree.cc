// The hierarchical design of Kurth et al.: requests merge on their way up a radix-r tree, so no rank receives from more
// than r children. Requests still travel in every step unless the cache is on. This strategy exists for comparison; see
// docs/explanation/agreement.md.
#include "control/strategies/relay.h"
#include "control/strategies/strategies.h"

namespace horocache::control {

std::unique_ptr<Agreement> MakeTreeAgreement(const AgreementConfig& config) {
  return std::make_unique<RelayAgreement>(
      RelayOptions{.shape = RelayOptions::Shape::kTree, .radix = config.radix, .with_requests = true, .merge = true});
}

}  // namespace horocache::control
