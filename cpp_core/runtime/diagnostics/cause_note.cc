#include "runtime/diagnostics/cause_note.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace horocache::runtime {
namespace {

constexpr size_t kMostNoteBytes = 4096;  // one write() takes all of it

}  // namespace

CauseNote::CauseNote(const std::string& folder, int rank)
    : path_(folder.empty() ? "" : folder + "/cause." + std::to_string(rank)), written_(folder.empty()) {
  if (!path_.empty()) unlink(path_.c_str());
}

void CauseNote::Failed(const Status& why) {
  switch (why.code()) {
    case StatusCode::kPeerLost:
    case StatusCode::kShutDown:
    case StatusCode::kAborted:
      return Write("follows", why.message());
    default:
      return;
  }
}

void CauseNote::Write(std::string_view kind, std::string_view why) {
  if (written_.exchange(true)) return;
  // If the note cannot be written, the launcher goes by the order in which the ranks end.
  const UniqueFd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return;
  std::string text = std::string(kind) + " " + std::to_string(NowNs()) + "\n" + std::string(why);
  text.resize(std::min(text.size(), kMostNoteBytes));
  [[maybe_unused]] const ssize_t written = write(file.get(), text.data(), text.size());
}

}  // namespace horocache::runtime
