#include "control/strategies/topology.h"

#include <algorithm>
#include <map>

namespace horocache::control {

namespace {

// Splits [begin, end) into at most `radix` parts of almost equal size; returns their first elements.
std::vector<int> Split(int begin, int end, int radix) {
  std::vector<int> firsts;
  const int count = end - begin, parts = std::min(radix, count);
  for (int part = 0, first = begin; part < parts; ++part) {
    firsts.push_back(first);
    first += count / parts + (part < count % parts ? 1 : 0);
  }
  return firsts;
}

}  // namespace

Place StarPlace(int rank, int size) { return TreePlace(rank, size, size); }

Place TreePlace(int rank, int size, int radix) {
  Place place;
  // Walks down from the root, whose subtree is [0, size), to the node that is `rank`.
  for (int node = 0, end = size;;) {
    const std::vector<int> children = Split(node + 1, end, std::max(radix, 1));
    if (node == rank) {
      place.children = children;
      return place;
    }
    const auto next = std::upper_bound(children.begin(), children.end(), rank);
    place.parent = node;
    node = *(next - 1);
    if (next != children.end()) end = *next;
  }
}

Place HostPlace(int rank, int size, int radix, const std::vector<int>& host_of) {
  if (static_cast<int>(host_of.size()) != size) return StarPlace(rank, size);
  std::vector<int> leaders;
  std::map<int, int> leader_of;
  for (int r = 0; r < size; ++r) {
    if (leader_of.emplace(host_of[static_cast<size_t>(r)], r).second) leaders.push_back(r);
  }
  const int my_leader = leader_of.at(host_of[static_cast<size_t>(rank)]);
  if (my_leader != rank) return {.parent = my_leader, .children = {}};
  const auto index = std::lower_bound(leaders.begin(), leaders.end(), rank) - leaders.begin();
  Place place = TreePlace(static_cast<int>(index), static_cast<int>(leaders.size()), radix);
  if (place.parent >= 0) place.parent = leaders[static_cast<size_t>(place.parent)];
  for (int& child : place.children) child = leaders[static_cast<size_t>(child)];
  for (int r = 0; r < size; ++r) {
    if (r != rank && host_of[static_cast<size_t>(r)] == host_of[static_cast<size_t>(rank)]) place.children.push_back(r);
  }
  std::ranges::sort(place.children);
  return place;
}

}  // namespace horocache::control
