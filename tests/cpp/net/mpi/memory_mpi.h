// MPI messages and windows between ranks of one process, for tests of the code that waits for messages. Collectives are
// not supported.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "net/mpi/communicator.h"
#include "net/mpi/mpi.h"

// Functions of LeakSanitizer; null in builds without it.
extern "C" {
__attribute__((weak)) void __lsan_disable();  // NOLINT
__attribute__((weak)) void __lsan_enable();   // NOLINT
}

namespace horocache::net {

// The messages that have been sent to each rank, and the memory that each rank exposes. Any thread may call.
class MemoryMessages {
 public:
  struct Message {
    int from, tag;
    std::string bytes;
  };

  explicit MemoryMessages(int size) : size_(size), arrived_(static_cast<size_t>(size)) {}

  int size() const { return size_; }
  void Put(int to, Message message) HC_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    arrived_[static_cast<size_t>(to)].push_back(std::move(message));
  }
  size_t Count(int to) HC_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return arrived_[static_cast<size_t>(to)].size();
  }
  void Expose(int rank, std::byte* memory) HC_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    exposed_[rank] = memory;
  }
  std::byte* Exposed(int rank) HC_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return exposed_.at(rank);
  }
  // Removes and returns the first message to `to` with this tag from rank `from`, or from any rank if `from` is
  // negative. Null if there is none.
  std::unique_ptr<Message> Take(int to, int from, int tag) HC_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto& messages = arrived_[static_cast<size_t>(to)];
    const auto found = std::ranges::find_if(
        messages, [&](const Message& message) { return message.tag == tag && (from < 0 || message.from == from); });
    if (found == messages.end()) return nullptr;
    auto taken = std::make_unique<Message>(std::move(*found));
    messages.erase(found);
    return taken;
  }

 private:
  const int size_;
  Mutex mutex_;
  std::vector<std::deque<Message>> arrived_ HC_GUARDED_BY(mutex_);  // by receiver
  std::map<int, std::byte*> exposed_ HC_GUARDED_BY(mutex_);
};

// The MPI of one rank, for one thread; one-sided operations for any. Every communicator has all ranks. A send to
// `unreachable` fails at once. LeakSanitizer is off while the object lives, because the buffers of orphaned requests
// belong to the library.
class MemoryMpi final : public Mpi {
 public:
  MemoryMpi(MemoryMessages* messages, int rank, int unreachable = -1)
      : messages_(messages), rank_(rank), unreachable_(unreachable) {
    if (__lsan_disable != nullptr) __lsan_disable();
  }
  ~MemoryMpi() override {
    if (__lsan_enable != nullptr) __lsan_enable();
  }
  MemoryMpi(const MemoryMpi&) = delete;
  MemoryMpi& operator=(const MemoryMpi&) = delete;

  Communicator World() { return Communicator::Borrow(this, world()); }

  MpiAbi abi() const override { return MpiAbi::kStandard; }
  const std::string& path() const override { return path_; }
  std::string Version() const override { return "of a test"; }
  bool Initialized() const override { return true; }
  bool Finalized() const override { return false; }
  StatusOr<MpiThreads> InitThread(MpiThreads wanted) override { return wanted; }
  MpiThreads QueryThread() const override { return MpiThreads::kMultiple; }
  Status Finalize() override { return Status::Ok(); }
  MpiComm world() const override { return {1}; }
  int Rank(MpiComm) const override { return rank_; }
  int Size(MpiComm) const override { return messages_->size(); }
  Status ReturnErrors(MpiComm) override { return Status::Ok(); }
  Status Free(MpiComm*) override { return Status::Ok(); }
  MpiType byte() const override { return {1}; }
  MpiType TypeOf(DType) const override { return {}; }
  MpiOp OpOf(MpiReduction) const override { return {}; }
  Status FreeOp(MpiOp*) override { return Status::Ok(); }
  void* in_place() const override { return nullptr; }
  bool IsNull(const MpiRequest& request) const override { return request.handle == 0; }
  MpiRequest null_request() const override { return {}; }

  Status Isend(const void* data, int count, MpiType, int to, int tag, MpiComm, MpiRequest* request) override {
    if (to == unreachable_) return {StatusCode::kInternal, "MPI_ERR_PROC_FAILED"};
    messages_->Put(to, {rank_, tag, std::string(static_cast<const char*>(data), static_cast<size_t>(count))});
    *request = Add({});
    return Status::Ok();
  }
  Status Irecv(void* data, int count, MpiType, int from, int tag, MpiComm, MpiRequest* request) override {
    *request = Add({static_cast<char*>(data), count, from, tag});
    return Status::Ok();
  }
  StatusOr<bool> Improbe(int tag, MpiComm, MpiMessage* message, Received* received) override {
    probed_ = messages_->Take(rank_, -1, tag);
    if (probed_ == nullptr) return false;
    *received = {probed_->from, tag, static_cast<int>(probed_->bytes.size())};
    message->handle = 1;
    return true;
  }
  Status Imrecv(void* data, int count, MpiType, MpiMessage*, MpiRequest* request) override {
    *request = Add({static_cast<char*>(data), count, probed_->from, probed_->tag});
    return Deliver(*request, std::exchange(probed_, nullptr));
  }
  // Makes every later Test() hang, as it may in a library that has failed.
  void Hang() { hangs_ = true; }
  StatusOr<bool> Test(MpiRequest* request, Received* received) override {
    while (hangs_) pause();
    Waiting& waiting = waiting_.at(request->handle);
    if (waiting.data != nullptr) {
      auto message = messages_->Take(rank_, waiting.from, waiting.tag);
      if (message == nullptr) return false;
      HC_RETURN_IF_ERROR(Deliver(*request, std::move(message)));
    }
    if (received != nullptr) *received = waiting.received;
    waiting_.erase(request->handle);
    *request = null_request();
    return true;
  }

  Status CreateWindow(void* memory, size_t, MpiComm, MpiWin*) override {
    messages_->Expose(rank_, static_cast<std::byte*>(memory));
    return Status::Ok();
  }
  Status FreeWindow(MpiWin*) override { return Status::Ok(); }
  // MPI promises no order between a flush and the next, so this one is the worst: words at once, and the last put
  // first.
  Status Put(const void* data, int bytes, int to, size_t offset, MpiWin) override {
    const MutexLock lock(puts_mutex_);
    puts_.push_back({to, offset, static_cast<const std::byte*>(data), static_cast<size_t>(bytes)});
    return Status::Ok();
  }
  Status StoreWord(const uint64_t* word, int to, size_t offset, MpiWin) override {
    auto* const at = reinterpret_cast<uint64_t*>(messages_->Exposed(to) + offset);
    std::atomic_ref(*at).store(*word, std::memory_order_seq_cst);
    return Status::Ok();
  }
  Status FlushWindow(int to, MpiWin) override {
    while (hangs_) pause();
    const MutexLock lock(puts_mutex_);
    for (auto put = puts_.rbegin(); put != puts_.rend(); ++put) {
      if (put->to == to) std::memcpy(messages_->Exposed(to) + put->offset, put->data, put->bytes);
    }
    std::erase_if(puts_, [to](const PendingPut& put) { return put.to == to; });
    return Status::Ok();
  }

  StatusOr<MpiOp> MakeOp(MpiFold) override { return Missing(); }
  // The request completes, so that a wait for it can be tested. The copy cannot be used.
  Status StartDup(MpiComm, MpiComm*, MpiRequest* request) override {
    *request = Add({nullptr});
    return Status::Ok();
  }
  Status CreateGroup(MpiComm, const std::vector<int>&, int, MpiComm*) override { return Missing(); }
  Status Iallreduce(const void*, void*, int, MpiType, MpiOp, MpiComm, MpiRequest*) override { return Missing(); }
  Status Ireduce(const void*, void*, int, MpiType, MpiOp, int, MpiComm, MpiRequest*) override { return Missing(); }
  Status Ibcast(void*, int, MpiType, int, MpiComm, MpiRequest*) override { return Missing(); }
  Status Iallgatherv(const void*, int, void*, const int*, const int*, MpiType, MpiComm, MpiRequest*) override {
    return Missing();
  }
  Status Ialltoallv(const void*, const int*, const int*, void*, const int*, const int*, MpiType, MpiComm,
                    MpiRequest*) override {
    return Missing();
  }
  Status Igatherv(const void*, int, void*, const int*, const int*, MpiType, int, MpiComm, MpiRequest*) override {
    return Missing();
  }
  Status Iscatterv(const void*, const int*, const int*, void*, int, MpiType, int, MpiComm, MpiRequest*) override {
    return Missing();
  }
  Status Ibarrier(MpiComm, MpiRequest*) override { return Missing(); }

 private:
  struct Waiting {
    char* data = nullptr;  // null: complete
    int count = 0, from = -1, tag = 0;
    Received received = {};
  };

  struct PendingPut {
    int to;
    size_t offset;
    const std::byte* data;
    size_t bytes;
  };

  static Status Missing() { return UnsupportedError("the tests' MPI has only messages and windows"); }
  MpiRequest Add(Waiting waiting) {
    waiting_.emplace(++last_, waiting);
    return {last_};
  }
  Status Deliver(const MpiRequest& request, std::unique_ptr<MemoryMessages::Message> message) {
    Waiting& waiting = waiting_.at(request.handle);
    if (message->bytes.size() > static_cast<size_t>(waiting.count)) return {StatusCode::kInternal, "truncated"};
    if (!message->bytes.empty()) std::memcpy(waiting.data, message->bytes.data(), message->bytes.size());
    waiting.received = {message->from, message->tag, static_cast<int>(message->bytes.size())};
    waiting.data = nullptr;
    return Status::Ok();
  }

  MemoryMessages* const messages_;
  const int rank_, unreachable_;
  std::atomic<bool> hangs_{false};
  const std::string path_ = "memory";
  std::map<uintptr_t, Waiting> waiting_;
  std::unique_ptr<MemoryMessages::Message> probed_;
  uintptr_t last_ = 0;
  Mutex puts_mutex_;
  std::vector<PendingPut> puts_ HC_GUARDED_BY(puts_mutex_);
};

}  // namespace horocache::net
