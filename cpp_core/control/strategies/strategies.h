// The constructors of the agreement strategies, one file each; MakeAgreement chooses among them.
#pragma once

#include <memory>

#include "control/agreement.h"

namespace horocache::control {

// The paper's Algorithms 1 and 2: one AND over all ranks; only uncached requests are gathered to rank 0.
std::unique_ptr<Agreement> MakeBitsAgreement(const AgreementConfig& config);

// As bits, but with one leader per host that speaks for the ranks of its host.
std::unique_ptr<Agreement> MakeLeadersAgreement(const AgreementConfig& config);

// In every round, all requests go to rank 0 and the responses come back.
std::unique_ptr<Agreement> MakeCoordinatorAgreement(const AgreementConfig& config);

// Requests merge on their way up a tree of config.radix children per node; responses come down the same way.
std::unique_ptr<Agreement> MakeTreeAgreement(const AgreementConfig& config);

}  // namespace horocache::control
