// Checks that every backend makes before it starts a collective. They cover only arguments that are equal on all ranks,
// so that either all ranks start or none does. The collective itself compares arguments that may differ between ranks
// (rows, splits, counts).
#pragma once

#include "base/status.h"
#include "control/selector.h"
#include "data/backend.h"

namespace horocache::data {

Status CheckCollective(const Collective& collective, const control::BackendTraits& traits, int ranks);

// The bits (BackendTraits::ops) of all operations that backends run: the collectives that move data, and barrier.
uint32_t AllCollectives();

}  // namespace horocache::data
