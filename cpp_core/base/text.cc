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

// Bytes of the UTF-8 sequence that `lead` begins; 0 if no sequence begins with it.
size_t AnnouncedLength(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
}

// True for overlong forms, surrogates, and values beyond the last code point. The first two bytes show it.
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

constexpr uint32_t kNoCode = ~0u;

// The code point of one character; kNoCode for a byte that is not UTF-8.
uint32_t CodeOf(std::string_view character) {
  const auto lead = static_cast<uint8_t>(character[0]);
  if (Utf8Length(character) == 0) return kNoCode;
  if (character.size() == 1) return lead;
  uint32_t code = lead & (0x7f >> character.size());
  for (const char next : character.substr(1)) code = code << 6 | (static_cast<uint8_t>(next) & 0x3f);
  return code;
}

// True if a character acts on a terminal or on the order of the text beside it, or is invisible: Unicode's controls
// (Cc), format characters (Cf) and separators of lines and paragraphs (Zl, Zp).
bool IsInvisible(uint32_t code) {
  struct Range {
    uint32_t first, last;
  };
  static constexpr std::array<Range, 20> kRanges = {
      {{0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},
       {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x180e, 0x180e},
       {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0xfeff, 0xfeff},   {0xfff9, 0xfffb},
       {0x110bd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe007f}}};
  return std::ranges::any_of(kRanges, [code](Range range) { return range.first <= code && code <= range.last; });
}

void AppendFormat(const char* format, uint32_t number, std::string* out) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), format, number);
  *out += text.data();
}

// Appends one character, or an escape in its place.
void AppendVisible(std::string_view character, std::string* out) {
  const uint32_t code = CodeOf(character);
  if (code == kNoCode) {
    AppendFormat("\\x%02x", static_cast<uint8_t>(character[0]), out);
  } else if (!IsInvisible(code)) {
    *out += character;
  } else {
    AppendFormat(code < 0x80 ? "\\x%02x" : code <= 0xffff ? "\\u%04x" : "\\U%08x", code, out);
  }
}

template <typename Take>
void ForEachCharacter(std::string_view bytes, Take&& take) {
  while (!bytes.empty()) {
    const size_t length = std::max<size_t>(Utf8Length(bytes), 1);
    take(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
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
  ForEachCharacter(bytes, [&out](std::string_view character) {
    if (character == "\n") {
      out += "\\n";
    } else if (character == "\\" || character == "'") {
      out.append("\\").append(character);
    } else {
      AppendVisible(character, &out);
    }
  });
  return out;
}

std::string PrintableLines(std::string_view bytes) {
  std::string out;
  ForEachCharacter(bytes, [&out](std::string_view character) {
    if (character == "\n" || character == "\t") {
      out += character;
    } else {
      AppendVisible(character, &out);
    }
  });
  return out;
}

std::string JsonText(std::string_view bytes) {
  std::string out = "\"";
  ForEachCharacter(bytes, [&out](std::string_view character) {
    const uint32_t code = CodeOf(character);
    if (code == kNoCode) {
      AppendFormat("\\\\x%02x", static_cast<uint8_t>(character[0]), &out);
    } else if (character == "\"" || character == "\\") {
      out.append("\\").append(character);
    } else if (!IsInvisible(code)) {
      out += character;
    } else if (code <= 0xffff) {
      AppendFormat("\\u%04x", code, &out);
    } else {  // a surrogate pair
      AppendFormat("\\u%04x", 0xd7c0 + (code >> 10), &out);
      AppendFormat("\\u%04x", 0xdc00 + (code & 0x3ff), &out);
    }
  });
  return out += '"';
}

std::string SecondsText(int64_t time_ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g s", static_cast<double>(time_ns) / static_cast<double>(kNsPerS));
  return text.data();
}

std::string Sentence(std::string text) {
  constexpr std::string_view kEnds = ".!?:;";
  if (!text.empty() && kEnds.find(text.back()) == std::string_view::npos) text += '.';
  return text;
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
