// Small helpers for messages to users.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace horocache {

// The candidate with the smallest edit distance to `name`; empty if none is near. A candidate is near if the distance
// is at most a third of the longer name's length.
std::string Nearest(std::string_view name, const std::vector<std::string>& candidates);

// `bytes` as part of one line, for names that come from users: escapes quotes, backslashes, bytes that are not UTF-8,
// and all characters that act on a terminal or cannot be seen (controls, direction marks, zero-width characters,
// separators of lines).
std::string Printable(std::string_view bytes);

// `bytes` as lines of text: escapes what Printable escapes, except line feeds, tabs, quotes and backslashes. Existing
// escapes stay as they are.
std::string PrintableLines(std::string_view bytes);

// `bytes` as a string of JSON, with its quotes; escapes the characters that Printable escapes. Bytes that are not UTF-8
// become \\x and two digits.
std::string JsonText(std::string_view bytes);

// Nanoseconds as "30 s".
std::string SecondsText(int64_t time_ns);

// `text` with a full stop, unless it ends with punctuation, so that another sentence can follow it.
std::string Sentence(std::string text);

std::vector<std::string> Split(std::string_view text, char separator);

// Parses `text` as a number. False if a part of it, or all of it, is not a number.
template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// "1, 0"
std::string ListText(const std::vector<int>& numbers);

std::string Join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace horocache
