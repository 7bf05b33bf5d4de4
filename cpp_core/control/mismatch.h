// Why two ranks' requests of one name cannot run together, in words.
#pragma once

#include <string>
#include <vector>

#include "control/rank_set.h"
#include "wire/message.h"

namespace horocache::control {

// The first difference, with both ranks, as `names` calls them, and both values and what to do; empty if there is none.
std::string Difference(const wire::Signature& a, int rank_a, const wire::Signature& b, int rank_b,
                       const RankNames& names = {});

// "Rank 2's group lacks 'b'. ": what one of two groups has and the other lacks; empty if they have nothing in common.
std::string MembersText(const wire::Signature& a, int rank_a, const wire::Signature& b, int rank_b,
                        const RankNames& names = {});

// "[4, 5]"; -1, a dimension that may differ between ranks, is "*".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace horocache::control
