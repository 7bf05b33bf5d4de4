// Small helpers for messages to people.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace horocache {

// The candidate with the smallest edit distance to `name`; empty if none is near (more than a third of the longer one's
// length differs).
std::string Nearest(std::string_view name, const std::vector<std::string>& candidates);

// `bytes` with control characters, quotes and bytes that are not UTF-8 escaped: names come from users.
std::string Printable(std::string_view bytes);

// `bytes` as a string of JSON, with its quotes. Bytes that are not UTF-8 become \\x and two digits.
std::string JsonText(std::string_view bytes);

// Nanoseconds as "30 s".
std::string SecondsText(int64_t time_ns);

std::vector<std::string> Split(std::string_view text, char separator);

// False unless all of `text` is the number.
template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// "1, 0"
std::string ListText(const std::vector<int>& numbers);

std::string Join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace horocache
