// The stacks of the program's threads, had by a signal: also while a thread keeps the interpreter's lock, or waits in
// native code.
//
// Note [Stacks by signal]
// An interpreter can write the stacks of its threads from the handler of a signal, without its lock (Python's
// faulthandler does). The binding has its interpreter write them into a file without a name; the handler here goes
// around that one, and is how this thread knows that all is written. The signal goes to the main thread, whose system
// calls are restarted where the kernel can do that. A handler of a signal belongs to the process, so what it needs
// does, too.
//
// One thread at a time; does not own the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace horocache::runtime {

class StackSignal {
 public:
  // To be called when the interpreter has taken the signal over. kUnsupported if the signal has no such handler.
  static StatusOr<std::unique_ptr<StackSignal>> Arm(int signal, int file);

  // What the interpreter writes; empty if it does not answer within a second.
  std::string Dump();

 private:
  StackSignal(int signal, int file) : signal_(signal), file_(file) {}

  const int signal_;
  const int file_;
  uint32_t due_ = 0;  // the count when everything that was asked for is written
};

}  // namespace horocache::runtime
