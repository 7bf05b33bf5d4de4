// Checks that every backend makes before it starts a collective. They cover only arguments that are equal on all ranks,
// so that either all ranks start or none does. The collective itself compares arguments that may differ between ranks
// (rows, splits, counts).
#pragma once

#include <initializer_list>

#include "base/status.h"
#include "control/selector.h"
#include "data/backend.h"

namespace horocache::data {

Status CheckCollective(const Collective& collective, const control::BackendTraits& traits, int ranks);

// One bit per wire::Op, as in BackendTraits::ops.
uint32_t OpBits(std::initializer_list<wire::Op> ops);
// The bits of all collectives that move data, and of barrier.
uint32_t AllCollectives();

}  // namespace horocache::data
