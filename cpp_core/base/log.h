// The log: one line per message on standard error, with the rank. Messages are rare by design: errors travel as Status.
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

  // Writes one line in one write(2); thread-safe.
  void Warning(std::string_view text) const;

 private:
  LogLevel level_ = LogLevel::kWarning;
  int rank_ = -1;
  bool with_time_ = false;
};

}  // namespace horocache
