// Who speaks for whom: a tree over the ranks of a process set, with rank 0 at its root.
//
// Pure data; each rank computes its own place.
#pragma once

#include <vector>

namespace horocache::control {

struct Place {
  int parent = -1;            // -1: the root
  std::vector<int> children;  // ascending
};

// Everybody is a child of rank 0.
Place StarPlace(int rank, int size);

// At most `radix` children per node; every subtree is a run of consecutive ranks.
Place TreePlace(int rank, int size, int radix);

// The lowest rank of each host leads it; leaders form a tree of `radix`, the others are children of their leader.
// `host_of` has the host of each rank, or is empty if there is only one.
Place HostPlace(int rank, int size, int radix, const std::vector<int>& host_of);

}  // namespace horocache::control
