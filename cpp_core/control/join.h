// The operations that can run while some ranks have joined, that is, have no data of their own.
#pragma once

#include "base/status.h"
#include "control/rank_set.h"
#include "wire/message.h"

namespace horocache::control {

// Ok if the operation can run while the `joined` ranks take part without data. Equal arguments give equal results on
// all ranks, so a cached operation needs no coordinator for this check.
Status CheckJoined(const wire::Signature& signature, const RankSet& joined, const RankNames& names = {});

}  // namespace horocache::control
