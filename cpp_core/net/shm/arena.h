// The shared memory of one job on one host: doorbells, bitvectors, frame rings, message slots and data areas of
// every local rank.
//
// Rank 0 of the host creates a memfd and passes it over the start-up socket, so the kernel frees the memory when all
// ranks are gone. Runtimes of one process share anonymous memory instead. Nothing takes a lock, because a rank may die
// at any point. Every word has one writer, except for the doorbells, the `blocked` flags and the first value of ran_ns.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/memory.h"
#include "base/status.h"
#include "net/shm/shared_regions.h"

namespace horocache::net {

struct ArenaLayout {
  int ranks = 1;
  int64_t max_words = 0;  // words of one hint or snapshot; 0: enough for 2^20 cache entries
  int64_t ring_bytes = 1 << 16;
  int64_t data_bytes = 8 << 20;  // per rank
  int32_t message_chunks = 16;   // per rank, for the messages that it sends
  int64_t message_chunk_bytes = 64 << 10;
  int64_t region_bytes = 0;  // address space per rank for tensors in shared memory; pages are allocated on use
};

// The state of a rank, stored by the rank itself.
// kJobLost: the rank runs and knows that a rank of the job, possibly itself, is lost. The other ranks detect that loss
// by themselves.
// kLeftJobLost: the rank has left, or does no more work, because the job cannot go on: a rank was lost, a rank aborted,
// or this rank failed. The other ranks report that cause, not the end of this rank. They detect the cause by themselves
// or read it with WhyJobLost.
enum class RankState : uint32_t { kAbsent, kRunning, kJobLost, kLeft, kLeftJobLost };
inline bool HasLeft(RankState state) { return state == RankState::kLeft || state == RankState::kLeftJobLost; }

// The doorbell of one rank. Several ranks write these words.
//
// Note [Doorbell]
// The ringing rank adds one to `rung`. If `armed` is not zero, the ringing rank also zeroes it and wakes the sleepers
// whose bits were set; if several ranks ring at once, the one that gets the bits wakes. A thread that is about to sleep
// reads `rung`, sets its bits in `armed`, checks once more for work, and then waits while `rung` equals the value that
// it read. So either the sleeper sees the new work, or the ringing rank sees the bits.
// A slow ringing rank may zero bits that a sleeper has set again, after it had already seen the work. The ringing rank
// therefore adds one to `rung` again after zeroing `armed`, and the sleeper does not sleep without its bits.
// A sleeper without a collective in progress does not arm kData, so data-plane progress does not wake it.
struct alignas(kCacheLine) DoorbellWords {
  std::atomic<uint32_t> rung{0};
  std::atomic<uint32_t> armed{0};  // bits of the sleepers to wake
};

// A handle to one rank's DoorbellWords, which it does not own.
class Doorbell {
 public:
  static constexpr uint32_t kBackground = 1;  // the progress thread
  static constexpr uint32_t kWaiter = 2;      // a user's thread that holds the progress lock
  // Added to one of the above: data-plane progress also wakes the sleeper.
  static constexpr uint32_t kData = 4;

  Doorbell() = default;
  explicit Doorbell(DoorbellWords* words) : words_(words) {}

  // Counts in `wakes`, which must outlive this object, the system calls that wake a sleeper.
  void CountWakes(std::atomic<uint64_t>* wakes) { wakes_ = wakes; }
  void Ring();
  void RingForData();  // wakes the sleepers only if kData is armed
  uint32_t Rung() const { return words_->rung.load(std::memory_order_seq_cst); }
  // Announces that `who` (and kData) is about to sleep. The caller has read Rung() before. It now checks once more for
  // work, then calls Sleep or Disarm.
  void Arm(uint32_t who);
  void Disarm(uint32_t who = ~0u);
  // Sleeps while `rung` equals `seen`, at most timeout_ns; may return early. Disarms `who` before it returns.
  void Sleep(uint32_t seen, uint32_t who, int64_t timeout_ns);

 private:
  void Ring(uint32_t wanted);

  DoorbellWords* words_ = nullptr;
  std::atomic<uint64_t>* wakes_ = nullptr;
};

// The frames from one rank to another that are not taken yet. Each frame has a word, which the sender stores last and
// which locates the frame's bytes (SlotWord in shm/message_link.cc). `bytes` has room for one small frame. The sender
// is the only writer.
struct MessageSlots {
  static constexpr size_t kCount = 8;
  alignas(kCacheLine) std::array<std::atomic<uint64_t>, kCount> words;
  alignas(kCacheLine) std::array<std::byte, kCacheLine> bytes;
};

class Arena {
 public:
  // Allocates all memory but the regions' at once, so that a shortage is kOutOfMemory with the size and the knob to
  // lower, not a SIGBUS later.
  static StatusOr<std::shared_ptr<Arena>> CreateShared(const ArenaLayout& layout);
  // Takes ownership of `fd`. kCorrupt if the memory is not an arena of this version.
  static StatusOr<std::shared_ptr<Arena>> Attach(int fd);
  // nullptr if the layout is invalid or the memory cannot be mapped.
  static std::shared_ptr<Arena> CreateOnHeap(const ArenaLayout& layout);
  ~Arena();

  int fd() const { return fd_; }  // -1 on the heap and after CloseFd
  // Closes the descriptor; the mapping stays. Called once every rank has attached.
  void CloseFd();
  const ArenaLayout& layout() const { return layout_; }
  // Equal in all processes that share the arena, and different from that of every other arena that exists now; 0 on the
  // heap.
  uint64_t id() const { return id_; }

  Doorbell doorbell(int rank);
  std::atomic<RankState>& state(int rank);
  // When the rank ran last, by the host's steady clock in nanoseconds; 0: it has not run. Used by HostMonitor.
  std::atomic<int64_t>& ran_ns(int rank);
  // When a thread of the rank that is not the core's was last seen to use the processor, in steady-clock nanoseconds.
  std::atomic<int64_t>& computed_ns(int rank);
  // NoteJobLost sets the state to kJobLost if it is kRunning; LeaveJobLost sets it to kLeftJobLost in any case. Each
  // keeps the first error that it gets as the reason; WhyJobLost prefers that of LeaveJobLost. Neither allocates
  // memory.
  void NoteJobLost(int rank, StatusCode code, std::string_view why);
  void LeaveJobLost(int rank, StatusCode code, std::string_view why);
  // The reason, cut to 500 bytes; ok if the rank is in neither of these states or gave no reason.
  Status WhyJobLost(int rank);
  // The thread id of the rank's peer monitor, which runs as long as the rank does; 0: not started.
  std::atomic<int32_t>& monitor_thread(int rank);

  // The bitvector of one hint or snapshot of one rank, followed by the snapshot's payload.
  struct Words {
    // Stored last. Of a snapshot: its round plus one; of a hint: a version number. 0: never written.
    std::atomic<uint64_t>* round = nullptr;
    // The number of words in the low 32 bits, of payload words in the high 32 bits.
    std::atomic<uint64_t>* count = nullptr;
    std::atomic<uint64_t>* words = nullptr;
  };
  Words hint(int rank);
  Words snapshot(int rank, uint64_t round);  // the buffer of `round` modulo 2

  // The frame ring from one rank to another. Rings exist between rank 0 and every other rank, in both directions.
  struct Ring {
    std::atomic<uint64_t>* head = nullptr;     // bytes written so far; stored by the sender
    std::atomic<uint64_t>* tail = nullptr;     // bytes read so far; stored by the receiver
    std::atomic<uint32_t>* blocked = nullptr;  // 1: the sender waits for room; the receiver clears it and rings
    std::byte* bytes = nullptr;
    size_t capacity = 0;
  };
  Ring ring(int from, int to);

  // Messages: frames from any rank to any rank, itself included. See Note [Slots and chunks] in shm/message_link.h.
  struct MessagePath {
    MessageSlots* slots = nullptr;           // written by the sender
    std::atomic<uint32_t>* taken = nullptr;  // frames taken so far; stored by the receiver
  };
  MessagePath message_path(int from, int to);
  // 1: the rank waits for room for its messages. The receiver that makes room clears it and rings.
  std::atomic<uint32_t>& message_blocked(int rank);
  std::span<std::byte> message_chunk(int rank, int index);

  std::span<std::byte> data(int rank);

  // Null if the layout has no regions or they cannot be mapped in this process.
  const std::shared_ptr<SharedRegions>& regions() const { return regions_; }

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

 private:
  // Offset and stride of every part in bytes; computed from the layout by Place(), for both kinds of memory.
  struct Places {
    size_t seats = 0, words = 0, words_stride = 0, rings = 0, ring_stride = 0, data = 0, data_stride = 0, total = 0;
    size_t slots = 0, taken = 0, taken_stride = 0, chunks = 0;  // for messages
    size_t regions = 0;                                         // behind `total`; not allocated at creation
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

  // Private copies: addresses are never computed from memory that a peer can write.
  ArenaLayout layout_;
  Places places_;
  std::byte* base_ = nullptr;
  std::shared_ptr<SharedRegions> regions_;
  int fd_ = -1;
  uint64_t id_ = 0;
};

}  // namespace horocache::net
