// The shared memory of one job on one host: doorbells, words, frame rings and data areas of every local rank.
//
// A memfd that rank 0 of the host creates and hands over on the start-up socket, so that nothing is left behind when
// all ranks are gone; or plain heap memory shared by several runtimes of one process. Every word has one writer, but
// for the doorbells. No locks: a rank may die anywhere.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/memory.h"
#include "base/status.h"
#include "net/regions.h"

namespace horocache::net {

struct ArenaLayout {
  int ranks = 1;
  int64_t max_words = 0;  // of one hint or snapshot; 0: enough for 2^20 cache entries
  int64_t ring_bytes = 1 << 16;
  int64_t data_bytes = 8 << 20;  // per rank
  int32_t message_chunks = 16;   // per rank, for messages on their way from it
  int64_t message_chunk_bytes = 64 << 10;
  int64_t region_bytes = 0;  // of address space per rank for tensors that live here; memory comes when it is used
};

// kJobLost: runs, and knows that a rank of the job is lost, itself maybe, which the others find out by themselves.
// kLeftJobLost: has left, or does nothing any more, because the job cannot go on: a rank was lost, or has aborted, or
// this one cannot go on. That is the cause that the other ranks are to report, and not that this one ends or leaves.
// They find it out by themselves, or else from WhyJobLost.
enum class RankState : uint32_t { kAbsent, kRunning, kJobLost, kLeft, kLeftJobLost };
inline bool HasLeft(RankState state) { return state == RankState::kLeft || state == RankState::kLeftJobLost; }

// One per rank; the only words that several ranks write.
//
// Note [Doorbell]
// Who rings adds one to `rung` and then, if it finds `armed` not zero and is the one who zeroes it, wakes the sleepers
// whose bits were armed. Who sleeps reads `rung`, arms, looks once more for work, and waits while `rung` is what it
// read. Either the sleeper sees the work or the ringer sees it armed. A ringer may be slow, and zero the bits of a
// sleeper that saw its work long ago and has armed again; it adds to `rung` once more after zeroing, so that this one
// does not sleep unarmed. A sleeper with no collective under way does not arm kData, and progress in the data plane
// leaves it asleep.
struct alignas(kCacheLine) DoorbellWords {
  std::atomic<uint32_t> rung{0};
  std::atomic<uint32_t> armed{0};  // bits: who would sleep
};

class Doorbell {
 public:
  static constexpr uint32_t kBackground = 1;  // the coordinator thread
  static constexpr uint32_t kWaiter = 2;      // a user's thread that has taken the role
  static constexpr uint32_t kData = 4;  // armed besides: the sleeper wants to know of progress in the data plane, too

  Doorbell() = default;
  explicit Doorbell(DoorbellWords* words) : words_(words) {}

  // Counts the system calls that wake somebody, for as long as this object rings.
  void CountWakes(std::atomic<uint64_t>* wakes) { wakes_ = wakes; }
  void Ring();
  void RingForData();  // wakes only sleepers that armed kData
  uint32_t Rung() const { return words_->rung.load(std::memory_order_seq_cst); }
  // Says that `who` (and kData) is about to sleep; the caller, who has read Rung() before, looks for work once more,
  // then calls Sleep or Disarm.
  void Arm(uint32_t who);
  void Disarm(uint32_t who = ~0u);
  // Sleeps until rung differs from `seen`, at most timeout_ns; may return early. `who` is disarmed afterwards.
  void Sleep(uint32_t seen, uint32_t who, int64_t timeout_ns);

 private:
  void Ring(uint32_t wanted);

  DoorbellWords* words_ = nullptr;
  std::atomic<uint64_t>* wakes_ = nullptr;
};

// The frames on their way from one rank to another, written by the sender: a word for each, which is stored last and
// says where its bytes are (shm_link.cc), and room for the bytes of a small one.
struct MessageSlots {
  static constexpr size_t kCount = 8;
  alignas(kCacheLine) std::array<std::atomic<uint64_t>, kCount> words;
  alignas(kCacheLine) std::array<std::byte, kCacheLine> bytes;
};

class Arena {
 public:
  // Reserves the memory at once: kOutOfMemory with size and knob instead of SIGBUS later.
  static StatusOr<std::shared_ptr<Arena>> CreateShared(const ArenaLayout& layout);
  // Takes ownership of `fd`. kCorrupt if it is not an arena of this version.
  static StatusOr<std::shared_ptr<Arena>> Attach(int fd);
  // nullptr if the layout is invalid or there is no memory.
  static std::shared_ptr<Arena> CreateOnHeap(const ArenaLayout& layout);
  ~Arena();

  int fd() const { return fd_; }  // -1 on the heap, and after CloseFd
  // The mapping lives on without its descriptor; called when every rank has attached.
  void CloseFd();
  const ArenaLayout& layout() const { return layout_; }
  // The same on all ranks that share it, and another for every other one that is there; 0 on the heap.
  uint64_t id() const { return id_; }

  Doorbell doorbell(int rank);
  std::atomic<RankState>& state(int rank);
  // When the rank ran last, by the host's steady clock; 0: it has not. For HostsWatch.
  std::atomic<int64_t>& ran_ns(int rank);
  // When the rank's threads were last seen to use the processor, besides those of the core, in steady-clock
  // nanoseconds.
  std::atomic<int64_t>& computed_ns(int rank);
  // Sets the state of a running rank to kJobLost, and that of any to kLeftJobLost. The first reason of each kind
  // counts, and that with which a rank leaves for more. Takes no memory.
  void NoteJobLost(int rank, StatusCode code, std::string_view why);
  void LeaveJobLost(int rank, StatusCode code, std::string_view why);
  // The reason, of which a long one has lost its end; ok where the state is another, or there is no reason.
  Status WhyJobLost(int rank);
  // The kernel's number of the rank's liveness thread, which lives as long as the rank does; 0: none yet.
  std::atomic<int32_t>& watcher(int rank);

  // One rank's words in the control area, with its payload behind them.
  struct Words {
    // Of a snapshot: one more than the round it belongs to, stored last; of a hint: a version. 0: never written.
    std::atomic<uint64_t>* round = nullptr;
    // Of the words, and from bit 32 on of the payload.
    std::atomic<uint64_t>* count = nullptr;
    std::atomic<uint64_t>* words = nullptr;
  };
  Words hint(int rank);
  Words snapshot(int rank, uint64_t round);  // the buffer of round modulo 2

  // The frame ring from one rank to another; rings exist between rank 0 and every other rank, in both directions.
  struct Ring {
    std::atomic<uint64_t>* head = nullptr;     // bytes ever written; written by the sender
    std::atomic<uint64_t>* tail = nullptr;     // bytes ever read; written by the receiver
    std::atomic<uint32_t>* blocked = nullptr;  // 1: the sender waits for room; the receiver clears it and rings
    std::byte* bytes = nullptr;
    size_t capacity = 0;
  };
  Ring ring(int from, int to);

  // Messages: frames from every rank to every rank, itself included. See Note [Slots and chunks] in shm_link.h.
  struct MessagePath {
    MessageSlots* slots = nullptr;           // written by the sender
    std::atomic<uint32_t>* taken = nullptr;  // frames ever taken; written by the receiver
  };
  MessagePath message_path(int from, int to);
  // 1: the rank waits for room for what it sends; who makes room clears it and rings.
  std::atomic<uint32_t>& message_blocked(int rank);
  std::span<std::byte> message_chunk(int rank, int index);

  std::span<std::byte> data(int rank);

  // Null if the layout has none, or they cannot be mapped here.
  const std::shared_ptr<Regions>& regions() const { return regions_; }

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

 private:
  // Where everything lies; computed by one function from the layout, for every kind of memory.
  struct Places {
    size_t seats = 0, words = 0, words_stride = 0, rings = 0, ring_stride = 0, data = 0, data_stride = 0, total = 0;
    size_t slots = 0, taken = 0, taken_stride = 0, chunks = 0;  // of messages
    size_t regions = 0;                                         // behind `total`, where memory is reserved
  };
  struct Header;
  struct Reason;
  struct Seat;

  Arena() = default;
  static Status CheckLayout(ArenaLayout* layout);
  static Places Place(const ArenaLayout& layout);
  Seat& seat(int rank);
  Words WordsAt(size_t index);
  size_t FileBytes() const;
  Status MapShared();

  // Private copies: what peers may write is never trusted for addresses.
  ArenaLayout layout_;
  Places places_;
  std::byte* base_ = nullptr;
  std::shared_ptr<Regions> regions_;
  int fd_ = -1;
  uint64_t id_ = 0;
};

}  // namespace horocache::net
