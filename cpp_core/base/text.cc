#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <numeric>

#include "base/duration.h"

namespace horocache {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// Bytes of the sequence that a lead byte announces; 0 if it announces none.
size_t AnnouncedLength(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
}

// Overlong forms, surrogates, and what lies beyond the last code point, told by the first two bytes.
bool IsForbidden(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xe0:
      return second < 0xa0;
    case 0xed:
      return second >= 0xa0;
    case 0xf0:
      return second < 0x90;
    case 0xf4:
      return second >= 0x90;
    default:
      return false;
  }
}

// The length of the valid UTF-8 sequence at the start of `bytes`, 0 if there is none.
size_t Utf8Length(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const size_t length = AnnouncedLength(at(0));
  if (length <= 1) return length;
  if (bytes.size() < length || IsForbidden(at(0), at(1))) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string Nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = ~size_t{0};
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance && distance * 3 <= std::max(name.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string Printable(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = Utf8Length(bytes.substr(i));
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7f || byte == '\\' || byte == '\'') {
      std::array<char, 5> text{};
      std::snprintf(text.data(), text.size(), "\\x%02x", byte);
      out += byte == '\\' ? "\\\\" : byte == '\'' ? "\\'" : byte == '\n' ? "\\n" : text.data();
      i += 1;
    } else {
      out += bytes.substr(i, length);
      i += length;
    }
  }
  return out;
}

std::string JsonText(std::string_view bytes) {
  std::string out = "\"";
  const auto escape = [&out](const char* format, uint8_t byte) {
    std::array<char, 8> text{};
    std::snprintf(text.data(), text.size(), format, byte);
    out += text.data();
  };
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = Utf8Length(bytes.substr(i));
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (length == 0) {
      escape("\\\\x%02x", byte);
    } else if (byte < 0x20 || byte == 0x7f) {
      escape("\\u%04x", byte);
    } else {
      if (byte == '"' || byte == '\\') out += '\\';
      out += bytes.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return out += '"';
}

std::string SecondsText(int64_t time_ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g s", static_cast<double>(time_ns) / static_cast<double>(kNsPerS));
  return text.data();
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string ListText(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (const int rank : ranks) parts.push_back(std::to_string(rank));
  return Join(parts, ", ");
}

std::string Join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

}  // namespace horocache
