// The union of runs of ranks.
#pragma once

#include <algorithm>
#include <cstddef>

#include "control/merged_request.h"

namespace horocache::control {

// Adds the ranks of `more` to `*runs`.
inline void Unite(const RankRuns& more, RankRuns* runs) {
  // Subtrees usually come in order of rank, so most additions extend the last run.
  if (more.size() == 1 && !runs->empty() && runs->back().end == more.front().begin) {
    runs->back().end = more.front().end;
    return;
  }
  runs->insert(runs->end(), more.begin(), more.end());
  std::ranges::sort(*runs, {}, &RankRun::begin);
  size_t last = 0;
  for (size_t i = 1; i < runs->size(); ++i) {
    if ((*runs)[i].begin <= (*runs)[last].end) {
      (*runs)[last].end = std::max((*runs)[last].end, (*runs)[i].end);
    } else {
      (*runs)[++last] = (*runs)[i];
    }
  }
  if (!runs->empty()) runs->resize(last + 1);
}

}  // namespace horocache::control
