#include "control/agreement.h"

#include "control/strategies/strategies.h"

namespace horocache::control {

std::unique_ptr<Agreement> MakeAgreement(const AgreementConfig& config) {
  if (config.strategy == "bits") return MakeBitsAgreement(config);
  if (config.strategy == "leaders") return MakeLeadersAgreement(config);
  if (config.strategy == "coordinator") return MakeCoordinatorAgreement(config);
  if (config.strategy == "tree") return MakeTreeAgreement(config);
  return nullptr;
}

}  // namespace horocache::control
