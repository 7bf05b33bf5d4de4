// Reads the stacks of the program's threads, also while a thread holds the interpreter's lock or waits in native code.
//
// Note [Reading stacks safely]
// Frames may be read only while no thread changes them, that is, under the interpreter's lock. A reader without the
// lock may follow the frames of a running thread into freed memory, and crash the process.
//
// So a thread of the interpreter is asked first. It gets the lock as soon as the lock's holder executes the
// interpreter's code or releases the lock. If that thread does not answer, some thread holds the lock in native code,
// and then no frames change. If the holder is the main thread, a signal to it runs a handler from which the interpreter
// can write all stacks, as Python's faulthandler does. If the holder is another thread, it may continue at any moment,
// so stacks are unavailable.
//
// Both ways write to an unnamed file. System calls that the signal interrupts are restarted where the kernel can do
// that. A signal handler belongs to the process, and so does the state that it uses.
//
// Threads: one at a time. Owns none of the descriptors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace horocache::runtime {

// The interpreter's means to write stacks.
struct StackSource {
  int file = -1;  // the stacks are written here
  // eventfds. A thread of the interpreter waits for `ask`, writes the stacks and sets `answer`. -1: not available.
  int ask = -1, answer = -1;
  int signal = 0;                     // a signal whose handler writes the stacks
  int (*keeps_lock)(void) = nullptr;  // called in the handler; true if the calling thread holds the lock
};

class StackSignal {
 public:
  // Wraps the signal's handler. Call it after the interpreter has installed the handler. Returns kUnsupported if the
  // signal has no such handler.
  static StatusOr<std::unique_ptr<StackSignal>> Arm(const StackSource& source);

  // Returns the text that the interpreter writes; empty if it does not answer within a second.
  std::string Dump();

 private:
  explicit StackSignal(const StackSource& source)
      : source_(source), file_(source.file), ask_(source.ask), answer_(source.answer) {}
  bool AskThread();
  bool Answered(int patience_ms) const;
  bool SendSignal();

  const StackSource source_;
  const FileIdentity file_, ask_, answer_;
  bool asked_ = false;  // true if an answer to `ask` is outstanding
  uint32_t due_ = 0;    // the handler's run count once all requested signals are handled
};

}  // namespace horocache::runtime
