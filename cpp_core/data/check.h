// What every backend checks before it starts a collective: only what is equal on all ranks, so that either all start or
// none. What may differ between ranks (rows, splits, counts) is found out when they meet.
#pragma once

#include <initializer_list>

#include "base/status.h"
#include "control/selector.h"
#include "data/backend.h"

namespace horocache::data {

Status CheckCollective(const Collective& collective, const control::BackendTraits& traits, int ranks);

uint32_t OpBits(std::initializer_list<wire::Op> ops);
// The collectives with data, and barrier.
uint32_t AllCollectives();

}  // namespace horocache::data
