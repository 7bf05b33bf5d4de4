// Texts that say why the requests of two ranks with the same name cannot run together.
#pragma once

#include <string>
#include <vector>

#include "control/rank_set.h"
#include "wire/message.h"

namespace horocache::control {

// The first difference: both ranks (by their names in `names`), both values, and what to do. Empty if there is none.
std::string Difference(const wire::Signature& a, int rank_a, const wire::Signature& b, int rank_b,
                       const RankNames& names = {});

// The members that one of two groups has and the other lacks, as "Rank 2's group lacks 'b'. "; empty if the groups have
// no member in common.
std::string MembersText(const wire::Signature& a, int rank_a, const wire::Signature& b, int rank_b,
                        const RankNames& names = {});

// The shape as "[4, 5]"; a dimension of -1, which may differ between ranks, is "*".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace horocache::control
