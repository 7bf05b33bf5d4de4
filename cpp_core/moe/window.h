// A window: the memory by which the ranks of a process set run the one-sided exchanges of their layers, and this rank's
// part in them.
//
// Each rank has one block of memory that all ranks of the set have mapped. The writers of a block's parts differ:
//
// * Its owner writes the *head*: the rounds that it has released.
// * The cell of a batch, and that of a result, has one writer, the rank that sends it. The writer stores the payload,
// and
//   then the cell's word with the round and the number of rows. The owner reads the word, and then the payload.
// * Each rank writes its entry of `closed`, of `wants_room` and of `failures` in the blocks of the others.
//
// Ranks of the set on other hosts are *remote*: their blocks are not mapped. This rank gives what it writes to them to
// a carrier (remote/carrier.h), which keeps its order, and they store their head's number in this rank's block, too.
//
// A batch that is larger than its cell is *spilled*: its payload lies in a piece of the sender's own region, with room
// for the result behind it, and the cell has the piece's offset. The piece is reused when the host has released the
// round. A remote rank cannot get such a batch.
//
// So there is no lock, and a rank may die at any point. Round r uses the cells of `r mod depth`. See Note [The
// one-sided exchange] in exchange.h for when a cell is free.
//
// Several layers may share a window. Each round has a *tag*, which the layers choose; ranks that come to a round with
// different tags get an error.
//
// Threads: one at a time; any thread may call Lose, Close and what says so. Owns the block of this rank.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "moe/exchange.h"
#include "moe/exchange_counters.h"
#include "moe/remote/carrier.h"
#include "net/shm/arena.h"

namespace horocache::moe {

// Equal on all ranks of a window.
struct Geometry {
  std::vector<bool> hosts;   // for every rank whether it has experts
  uint32_t depth = 2;        // rounds whose cells exist at the same time
  int64_t batch_bytes = 0;   // room for the payload of a batch
  int64_t result_bytes = 0;  // room for the payload of a result
  int ranks() const { return static_cast<int>(hosts.size()); }
};

// The bytes of a rank's block.
int64_t BlockBytes(const Geometry& geometry, int rank);

class Window {
 public:
  struct Blocks {
    std::vector<std::byte*> base;       // of every rank's block, by rank of the set; zeroed at first. null: remote
    std::shared_ptr<const void> owner;  // keeps them mapped, and this rank's block allocated
    std::shared_ptr<Carrier> carrier;   // to remote ranks; its news ring the bell of this rank's block
    // By rank: memory that all ranks have mapped, in which the rank can allocate pieces. Unused with one rank.
    std::vector<std::span<std::byte>> regions;
    std::vector<int> ranks;  // of the job, by rank of the set, for counters; empty: they are equal
    // Allocates a piece of this rank's region; null if memory is short.
    std::function<std::shared_ptr<std::byte>(size_t bytes)> allocate;
  };
  using Check = std::function<Status()>;

  // A step for the caller. It reads and writes the spans until its next call.
  struct Step {
    Exchange::Act act = Exchange::Act::kLeave;
    int peer = -1;
    int32_t rows = 0;
    std::span<std::byte> batch;   // kSend: to write; kServe: to read
    std::span<std::byte> result;  // kServe: to write; kTake: to read
  };

  // `names`: of the ranks, for errors. `spin_ns`: how long a rank looks for news before it sleeps.
  Window(int rank, Geometry geometry, Blocks blocks, std::vector<std::string> names, int64_t spin_ns,
         std::shared_ptr<ExchangeCounters> counters);
  ~Window();
  // The bell of a rank's block.
  static net::Doorbell BellOf(std::byte* block);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Names the calls with a tag, for errors.
  void NameTag(uint32_t tag, std::string name) HC_EXCLUDES(names_mutex_) {
    const MutexLock lock(names_mutex_);
    tag_names_.insert_or_assign(tag, std::move(name));
  }

  // Begins a round. `row_bytes`: bytes of a row of batches, and of a row of results. kInvalidArgument if there are rows
  // for a rank without experts, or a round is under way; the round has not begun then. `check`: see Next.
  Status Enter(const Plan& plan, uint32_t tag, std::array<int64_t, 2> row_bytes, const Check& check);
  // Publishes the step before, waits, and returns the next step. kLeave ends the round. `check` is called several times
  // a second while it waits. An error ends the round, too, and the other ranks get it: of `check`, of another rank, or
  // kMismatch for different tags.
  StatusOr<Step> Next(const Check& check);
  // Ends the round with an error that the other ranks in this round get. `why` names the rank. The next round of this
  // rank begins when all ranks have left the failed one, because a rank keeps one error for the others.
  void Fail(const Status& why);

  // The rank does nothing more; it died.
  void Lose(int rank);
  // Tells the other ranks that this rank enters no further round. Idempotent.
  void Close();
  bool closed() const { return closed_; }
  // True if no other rank will write to this rank's block any more.
  bool IsForgotten() const;

  const Exchange& exchange() const { return exchange_; }
  // The waits of this rank, for reports: "layer 'a' (forward), round 7: waits for the result of rank 1".
  std::string DescribeWait() const;
  // The name of the call that a rank has begun and this rank has not; empty if none is known. Any thread.
  std::string CallAhead(int rank) const;
  // True if the rank closed the window, as opposed to having died.
  bool HasClosed(int rank) const;
  const Geometry& geometry() const { return geometry_; }
  // How long this round, or the last one, has waited for `rank`.
  int64_t waited_ns(int rank) const { return waited_ns_[static_cast<size_t>(rank)]; }

 private:
  struct Head;
  struct Failure;
  struct CellWord;
  // Offsets in a block, in bytes.
  struct Places {
    size_t closed = 0, released = 0, wants_room = 0, failures = 0, batch_words = 0, result_words = 0, batches = 0,
           results = 0;
    size_t total = 0;
  };
  friend int64_t BlockBytes(const Geometry& geometry, int rank);
  static Places Place(const Geometry& geometry, int rank);

  bool IsRemote(int rank) const { return blocks_.base[static_cast<size_t>(rank)] == nullptr; }
  Head& HeadOf(int rank) const;
  uint32_t ReleasedBy(int rank) const;
  void Ring(int rank);
  const std::string& Name() const { return names_[static_cast<size_t>(exchange_.rank())]; }
  template <typename T>
  T* Part(int owner, size_t Places::* part) const;
  // The offset of an element of a part in a rank's block.
  template <typename T>
  size_t OffsetOf(int owner, size_t Places::* part, int number) const {
    return places_[static_cast<size_t>(owner)].*part + static_cast<size_t>(number) * sizeof(T);
  }
  std::atomic<uint64_t>& Closed(int owner, int writer) const;
  std::atomic<uint32_t>& WantsRoom(int owner, int writer) const;
  size_t BatchNumber(int writer) const;
  size_t ResultNumber(int writer) const;
  // Offsets in the block of `owner`.
  size_t BatchWordAt(int owner, int writer) const;
  size_t ResultWordAt(int owner, int writer) const;
  size_t BatchAt(int owner, int writer) const;
  size_t ResultAt(int owner, int writer) const;
  CellWord& BatchWord(int owner, int writer) const;
  CellWord& ResultWord(int owner, int writer) const;
  std::span<std::byte> Batch(int owner, int writer, int32_t rows) const;
  std::span<std::byte> Result(int owner, int writer, int32_t rows) const;
  // A batch that is larger than its cell.
  struct Spill {
    int host = -1;
    uint32_t round = 0;
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;
  };
  bool Fits(int32_t rows) const;
  size_t SpillBytes(int32_t rows) const;
  StatusOr<Spill*> SpillFor(int host, int32_t rows);
  const Spill* FindSpill(int host) const;
  std::array<std::span<std::byte>, 2> SpillParts(std::byte* at, int32_t rows) const;
  Status Locate(int peer, int64_t offset, std::byte** at) const;

  // ---- remote ranks (window_remote.cc)
  Status CheckFits(int peer) const;
  std::span<std::byte> Stage(int64_t bytes);
  void PostBatch(int host);
  void PostResult(int peer);
  void PostWord(int peer, size_t offset, uint64_t word);
  void PostFailure(int peer, const Status& why);

  void Publish();
  void WriteBatchWord(CellWord* word) const;
  Status AwaitEndOfFailedRound(int64_t limit_ns, const Check& check);
  Status Poll();
  Status PollCells(int peer);
  Status FailureOf(int peer) const;
  Status Mismatch(int peer, uint32_t tag) const;
  Status RowMismatch(int peer, int64_t theirs, int64_t own) const;
  std::string NameOfTag(uint32_t tag) const HC_EXCLUDES(names_mutex_);
  StatusOr<Step> Begin(const Exchange::Step& step);
  Status BeginSend(int host);
  Status BeginServe(int peer);
  void BeginTake(int host);
  Status Wait(uint32_t rung, int64_t until_ns, const Check& check);
  bool AskForRoom();
  void Release();
  void Count(ExchangeCounters::Number ExchangeCounters::* which, uint64_t amount = 1) {
    ExchangeCounters::Add(&((*counters_).*which), amount);
  }

  const Geometry geometry_;
  Blocks blocks_;
  const std::vector<std::string> names_;
  const int64_t spin_ns_;
  const std::shared_ptr<ExchangeCounters> counters_;
  std::vector<Places> places_;        // by rank
  std::vector<size_t> host_number_;   // by rank: hosts before it
  std::vector<net::Doorbell> bells_;  // by rank
  std::vector<std::atomic<bool>> lost_;
  std::atomic<bool> closed_{false};
  Exchange exchange_;
  std::atomic<uint32_t> entered_{0};  // rounds that this rank has begun
  mutable Mutex names_mutex_;
  std::map<uint32_t, std::string> tag_names_ HC_GUARDED_BY(names_mutex_);
  Step step_;                  // the one that the caller is in
  uint32_t failed_round_ = 0;  // 0: none, or all ranks have left it
  uint32_t tag_ = 0;
  std::array<int64_t, 2> row_bytes_{};
  std::vector<int32_t> plan_rows_;  // of this rank's batches
  std::vector<int32_t> rows_;       // of the batches of the others; -1: not there yet
  std::vector<int64_t> waited_ns_;
  RemoteBuffer staged_;        // what the caller writes for a remote rank in this step
  int64_t idle_since_ns_ = 0;  // since when this step waits; 0: it has not waited yet
  int64_t checked_ns_ = 0;     // when `check` was called last
  std::vector<Spill> spills_;  // of this rank's batches, under way or to be reused
};

}  // namespace horocache::moe
