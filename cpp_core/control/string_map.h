// A hash map with string keys and lookup by string_view, which builds no string.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace horocache::control {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

template <typename V>
using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

}  // namespace horocache::control
