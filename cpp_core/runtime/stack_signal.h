// The stacks of the program's threads, also while a thread keeps the interpreter's lock, or waits in native code.
//
// Note [Whose frames may be read]
// Frames may be read while no thread changes them: with the interpreter's lock. Whoever reads those of a thread that
// runs may find memory that was given back, and the process dies of its own report.
// So a thread of the interpreter is asked first. It has the lock as soon as whoever has it runs code of the interpreter
// or gives it up. If it does not answer, some thread keeps the lock in native code, and then no frames change. If that
// is the main thread, a signal is sent to it, from whose handler the interpreter can write all stacks (Python's
// faulthandler does). If it is another one, nobody can tell from outside that it is not about to go on: there are no
// stacks.
// Both write into a file without a name. System calls that the signal interrupts are restarted where the kernel can do
// that. A handler of a signal belongs to the process, so what it needs does, too.
//
// One thread at a time; owns none of the descriptors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace horocache::runtime {

// How an interpreter tells its stacks.
struct StackSource {
  int file = -1;  // where they are written
  // Events (eventfd): a thread of the interpreter's waits for `ask`, writes, and sets `answer`. -1: there is none.
  int ask = -1, answer = -1;
  int signal = 0;                     // which has a handler that writes them
  int (*keeps_lock)(void) = nullptr;  // whether the thread that calls it has the interpreter's lock; for handlers
};

class StackSignal {
 public:
  // To be called when the interpreter has taken the signal over. kUnsupported if the signal has no such handler.
  static StatusOr<std::unique_ptr<StackSignal>> Arm(const StackSource& source);

  // What the interpreter writes; empty if it does not answer within a second.
  std::string Dump();

 private:
  explicit StackSignal(const StackSource& source)
      : source_(source), file_(source.file), ask_(source.ask), answer_(source.answer) {}
  bool AskThread();
  bool Answered(int patience_ms) const;
  bool SendSignal();

  const StackSource source_;
  const FileIdentity file_, ask_, answer_;
  bool asked_ = false;  // and not answered yet
  uint32_t due_ = 0;    // the count when everything that was asked for by signal is written
};

}  // namespace horocache::runtime
