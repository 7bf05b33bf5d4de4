#include "base/log.h"

#include <time.h>
#include <unistd.h>

#include <array>

#include "base/text.h"

namespace horocache {

void Logger::Warning(std::string_view text) const {
  if (level_ > LogLevel::kWarning) return;
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
  line += "WARNING: " + PrintableLines(text) + "\n";
  // A failure to write the line is ignored: it cannot be reported anywhere else.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace horocache
