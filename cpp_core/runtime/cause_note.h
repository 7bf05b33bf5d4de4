// Tells horocacherun whether this rank failed by itself or because of another one.
//
// The rank that ends first is often not the one to blame: the others see its error at once, while its own interpreter
// still waits for threads and exit handlers. So the first thing that goes wrong on a rank is written to a file in the
// launcher's folder, before the program sees it: "follows" if an operation failed because another rank died, left or
// aborted, "raised" if this rank aborts the job. The exit code and the text of the error do not matter then: frameworks
// wrap it in errors of their own.
//
// Shared: any thread may tell. One per runtime.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "base/status.h"

namespace horocache::runtime {

class CauseNote {
 public:
  // `folder`: of the launcher, which reads FOLDER/cause.RANK; empty: nobody wants to know. What an earlier runtime of
  // this rank has told is forgotten.
  CauseNote(const std::string& folder, int rank);

  void Raised(std::string_view why) { Tell("raised", why); }
  // Tells if another rank is the reason.
  void Failed(const Status& why);

 private:
  void Tell(std::string_view kind, std::string_view why);

  const std::string path_;
  std::atomic<bool> told_;
};

}  // namespace horocache::runtime
