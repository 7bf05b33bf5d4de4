// One line per message on standard error, with the rank, for people. Rare by design: errors travel as Status.
#pragma once

#include <string>
#include <string_view>

namespace horocache {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

// A rank's logger; owned by Runtime and handed down, so that runtimes in one process keep their own level and rank.
class Logger {
 public:
  Logger() = default;
  Logger(LogLevel level, int rank, bool with_time) : level_(level), rank_(rank), with_time_(with_time) {}

  bool Enabled(LogLevel level) const { return level >= level_; }
  // Writes one line in one write(2); thread-safe.
  void Write(LogLevel level, std::string_view text) const;

  void Debug(std::string_view text) const { Write(LogLevel::kDebug, text); }
  void Info(std::string_view text) const { Write(LogLevel::kInfo, text); }
  void Warning(std::string_view text) const { Write(LogLevel::kWarning, text); }
  void Error(std::string_view text) const { Write(LogLevel::kError, text); }

 private:
  LogLevel level_ = LogLevel::kWarning;
  int rank_ = -1;
  bool with_time_ = false;
};

// `bytes` with control characters, quotes and bytes that are not UTF-8 escaped: names come from users.
std::string Printable(std::string_view bytes);

}  // namespace horocache
