// What can run while some ranks have joined, that is, have no data of their own.
#pragma once

#include "base/status.h"
#include "control/rank_set.h"
#include "wire/message.h"

namespace horocache::control {

// Ok if the operation can run with `joined` ranks taking part without data. Equal inputs give equal answers, so a
// cached operation needs no coordinator for it.
Status CheckJoined(const wire::Signature& signature, const RankSet& joined, const RankNames& names = {});

}  // namespace horocache::control
