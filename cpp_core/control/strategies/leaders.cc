// Bits with one leader per host: ranks publish their bitvectors, and their leader AND-reduces them. Leaders AND-reduce
// up a tree among themselves, and the result comes down the same way. Uncached requests follow in a second pass,
// merged. So only one rank per host sends frames to other hosts.
#include "control/strategies/relay.h"
#include "control/strategies/strategies.h"

namespace horocache::control {

std::unique_ptr<Agreement> MakeLeadersAgreement(const AgreementConfig& config) {
  return std::make_unique<RelayAgreement>(RelayOptions{.shape = RelayOptions::Shape::kHosts,
                                                       .radix = config.radix,
                                                       .host_of = config.host_of,
                                                       .with_requests = false,
                                                       .merge = true,
                                                       .share_bitvectors = true});
}

}  // namespace horocache::control
