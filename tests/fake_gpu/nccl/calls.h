// The beginning of every call of the fake NCCL, groups, and the communicators by their handles.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nccl/communicator.h"

namespace fake_gpu {

// A call inside a group, until the group ends.
struct Pending {
  std::shared_ptr<Communicator> communicator;
  void* stream = nullptr;
  CollectiveCall collective;  // kind kNone: a message
  MessageCall message;
};
struct Initialization {
  std::shared_ptr<Communicator> communicator;
  UniqueId id;
  void** result = nullptr;
};
struct Group {
  int depth = 0;
  Result error = ncclSuccess;
  std::vector<Pending> calls;
  std::vector<Initialization> initializations;
  std::vector<std::shared_ptr<Communicator>> aborts;
};
// Of the calling thread.
extern thread_local Group group;
extern thread_local std::string last_error;

// Notes an error, for ncclGetLastError and for the end of the group; returns the code.
Result Fail(Result code, const std::string& why, Communicator* communicator = nullptr);
// Begins a call: counts it, and does what the fault plan says.
Result Begin(const char* function, Communicator* communicator = nullptr);
void AddCommunicator(const std::shared_ptr<Communicator>& communicator);
// Marks a communicator as gone; it stays in the table, so that its use is seen.
void RemoveCommunicator(Communicator* communicator);
// The communicator of a handle; null: there is none.
std::shared_ptr<Communicator> Find(const void* handle);
// A communicator that can be used; InvalidArgument if there is none, or if it is gone.
Result Usable(const char* function, const void* handle, std::shared_ptr<Communicator>* communicator);
// True if a kernel can use `bytes` at the address: memory of a device, or registered memory.
bool CanReach(Address address, size_t bytes);

// One thread at a time may be inside calls of a communicator, and of a device where that is checked.
class Occupation {
 public:
  explicit Occupation(std::shared_ptr<Communicator> communicator);
  ~Occupation() {
    if (owns_) communicator_->user = std::thread::id{};
  }
  Occupation(const Occupation&) = delete;
  Occupation& operator=(const Occupation&) = delete;

 private:
  const std::shared_ptr<Communicator> communicator_;
  bool owns_ = false;
};

// Connects the ranks of a communicator, in the calling thread; its state says how that ended.
void Connect(const Initialization& made);
// The result of a blocking initialization; one that has failed leaves no communicator.
Result Finish(const Initialization& made);
Result Abort(const std::shared_ptr<Communicator>& communicator);
// Launches the calls of a group, or one call by itself.
Result LaunchCalls(const std::vector<Pending>& calls);
// The code that a call of a communicator returns: ncclInProgress for a non-blocking one, where that is asked for.
Result AfterCall(Communicator* communicator, Result code);

}  // namespace fake_gpu
