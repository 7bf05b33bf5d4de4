// Bits with one leader per host: ranks publish their words for their leader, which ANDs them; leaders AND up a tree
// among themselves, and the result comes down the same way. Requests that the caches do not know follow in a second
// pass, merged. So only one rank per host sends anything to another host.
#include "control/agreements/relay.h"
#include "control/agreements/strategies.h"

namespace horocache::control {

std::unique_ptr<Agreement> MakeLeadersAgreement(const AgreementConfig& config) {
  return std::make_unique<RelayAgreement>(RelayOptions{.shape = RelayOptions::Shape::kHosts,
                                                       .radix = config.radix,
                                                       .host_of = config.host_of,
                                                       .with_requests = false,
                                                       .merge = true,
                                                       .share_words = true});
}

}  // namespace horocache::control
