#include "base/log.h"

#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>

namespace horocache {
namespace {

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

void Logger::Write(LogLevel level, std::string_view text) const {
  static constexpr std::array<std::string_view, 6> kNames = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"};
  if (!Enabled(level)) return;
  std::string line = "[horocache";
  if (rank_ >= 0) line += " rank " + std::to_string(rank_);
  line += "] ";
  if (with_time_) {
    const time_t now = time(nullptr);
    std::array<char, 32> stamp{};
    tm parts{};
    strftime(stamp.data(), stamp.size(), "%F %T ", localtime_r(&now, &parts));
    line += stamp.data();
  }
  line += std::string(kNames.at(static_cast<size_t>(level))) + ": " + std::string(text) + "\n";
  // A log line that cannot be written has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace horocache
