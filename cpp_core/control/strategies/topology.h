// Trees over the ranks of a process set, with rank 0 at the root: each rank speaks to its parent for its subtree.
//
// Pure data; each rank computes its own position.
#pragma once

#include <vector>

namespace horocache::control {

struct Place {
  int parent = -1;            // -1: the root
  std::vector<int> children;  // ascending
};

// All other ranks are children of rank 0.
Place StarPlace(int rank, int size);

// At most `radix` children per node; every subtree is a run of consecutive ranks. Example with 10 ranks and radix 3:
// rank 0 has the children 1, 4 and 7; rank 4 has 5 and 6.
Place TreePlace(int rank, int size, int radix);

// The lowest rank of each host is its leader. Leaders form a tree of `radix`; the other ranks are children of their
// leader. `host_of` has the host of each rank, or is empty if there is only one host.
Place HostPlace(int rank, int size, int radix, const std::vector<int>& host_of);

}  // namespace horocache::control
