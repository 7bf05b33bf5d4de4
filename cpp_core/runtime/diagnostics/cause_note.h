// Tells horocacherun whether this rank failed by itself or because of another rank.
//
// The rank that ends first is often not the cause: the other ranks see its error at once and may end while its own
// interpreter still waits for threads and exit handlers. So each rank writes its first failure to a file in the
// launcher's folder before the program sees the error. The file says "follows" if an operation failed because another
// rank died, left or aborted, and "raised" if this rank aborts the job. The launcher then needs neither the exit code
// nor the text of the final exception, which frameworks wrap in their own errors.
//
// Shared: any thread may report. One object per runtime.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "base/status.h"

namespace horocache::runtime {

class CauseNote {
 public:
  // `folder` is the launcher's, which reads FOLDER/cause.RANK; empty: notes are off. Removes the note of an earlier
  // runtime of this rank.
  CauseNote(const std::string& folder, int rank);

  void Raised(std::string_view why) { Write("raised", why); }
  // Writes a note if `why` shows that another rank is the cause.
  void Failed(const Status& why);

 private:
  void Write(std::string_view kind, std::string_view why);

  const std::string path_;
  std::atomic<bool> written_;
};

}  // namespace horocache::runtime
