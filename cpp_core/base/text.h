// Small helpers for messages to people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace horocache {

// The candidate with the smallest edit distance to `name`; empty if none is near (more than a third of the longer one's
// length differs).
std::string Nearest(std::string_view name, const std::vector<std::string>& candidates);

// `bytes` with control characters, quotes and bytes that are not UTF-8 escaped: names come from users.
std::string Printable(std::string_view bytes);

std::string Join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace horocache
