#include "nccl/communicator.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <random>

#include "driver/options.h"
#include "nccl/arithmetic.h"

extern "C" int fake_nccl_version();  // of the library, for example 22809

namespace fake_gpu {
namespace {

constexpr uint64_t kMagic = 0x66616B656E63636C;

// The contents of an id.
struct IdContents {
  uint64_t magic;
  int32_t process;
  int32_t file;
  uint64_t random;
};

Segment* MapSegment(int file) {
  void* const memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Segment*>(memory);
}

// False for a process that has ended, even if its parent has not waited for it.
bool IsAlive(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const size_t end = line.rfind(')');
  return end != std::string::npos && end + 2 < line.size() && line[end + 2] != 'Z' && line[end + 2] != 'X';
}

uint64_t HostHash() {
  const char* const name = std::getenv("NCCL_HOSTID");
  return name == nullptr ? 1 : std::hash<std::string>{}(name);
}

bool OthersAre(const Communicator& communicator, const std::function<bool(const Segment::Slot&)>& are) {
  for (int rank = 0; rank < communicator.ranks; ++rank) {
    if (!are(communicator.segment->slots[rank])) return false;
  }
  return true;
}

// Where ranks notice the death of a peer, over sockets: sets the state. True if one is gone.
bool NoticeDeath(Communicator* communicator) {
  static const bool always = Number("FAKE_NCCL_SOCKET", 0) != 0;
  for (int rank = 0; rank < communicator->ranks; ++rank) {
    const Segment::Slot& slot = communicator->segment->slots[rank];
    if (slot.state != Segment::Slot::kAttached) continue;
    if (!always && slot.host == communicator->segment->slots[communicator->rank].host) continue;
    if (IsAlive(slot.process)) continue;
    Result expected = ncclSuccess;
    communicator->state.compare_exchange_strong(expected, ncclRemoteError);
    return true;
  }
  return false;
}

std::string Words(const Description& description) {
  return "#" + std::to_string(description.number) + " " + KindName(description.kind) + " count " +
         std::to_string(description.count) + " type " + std::to_string(description.type) + " operation " +
         std::to_string(description.operation) + " root " + std::to_string(description.root) +
         (description.place_in_window != 0 ? " in a window" : "");
}

std::string History(const Segment::Slot& slot) {
  std::string text;
  const uint64_t posted = slot.posted;
  for (uint64_t number = posted > kRemembered ? posted - kRemembered : 0; number < posted; ++number)
    text += "\n    " + Words(slot.recent[number % kRemembered]);
  return text;
}

bool Same(const Description& a, const Description& b) {
  return a.kind == b.kind && a.type == b.type && a.operation == b.operation && a.root == b.root && a.count == b.count &&
         a.place_in_window == b.place_in_window;
}

// Work of a communicator in a stream: knows its abort, and counts itself.
class CommunicatorWork : public Work {
 public:
  explicit CommunicatorWork(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {
    ++communicator_->under_way;
  }
  ~CommunicatorWork() override { --communicator_->under_way; }

  Outcome Run() final {
    if (communicator_->aborted || communicator_->revoked) return Outcome::kDone;
    for (;;) {
      const bool moved = Move();
      if (ended_) return Outcome::kDone;
      if (moved) continue;
      if (++idle_ % 64 == 0) NoticeDeath(communicator_.get());
      return Outcome::kAgain;
    }
  }

 protected:
  // Goes on; false if it has to wait.
  virtual bool Move() = 0;
  void End() { ended_ = true; }
  Communicator& communicator() { return *communicator_; }
  Segment& segment() { return *communicator_->segment; }
  Segment::Slot& slot() { return segment().slots[communicator_->rank]; }

  std::byte* Memory(Address address, size_t bytes) {
    const Lock lock(state().mutex);
    return Reach(lock, address, bytes);
  }

 private:
  const std::shared_ptr<Communicator> communicator_;
  bool ended_ = false;
  uint64_t idle_ = 0;
};

// A collective: the ranks post their descriptions and compare them, then move the data in parts that fit into the
// areas. In every part each rank fills its area, waits for the others, takes what it needs, and waits again.
class CollectiveWork : public CommunicatorWork {
 public:
  CollectiveWork(std::shared_ptr<Communicator> communicator, CollectiveCall call)
      : CommunicatorWork(std::move(communicator)), call_(std::move(call)), what_(call_.description) {
    const size_t blocks = InputBlocks();
    size_ = TypeSize(what_.type);
    part_ = kAreaBytes / size_ / blocks;
  }

 protected:
  bool Move() override {
    switch (phase_) {
      case Phase::kPost:
        Post();
        return true;
      case Phase::kMeet:
        return Meet();
      case Phase::kFill:
        Fill();
        Arrive();
        phase_ = Phase::kTake;
        return true;
      case Phase::kTake:
        if (!Arrived()) return false;
        Take();
        Arrive();
        phase_ = Phase::kNext;
        return true;
      case Phase::kNext:
        if (!Arrived()) return false;
        first_ += part_;
        if (first_ >= what_.count) {
          End();
        } else {
          phase_ = Phase::kFill;
        }
        return true;
      case Phase::kStuck:
        return false;
    }
    return false;
  }

 private:
  enum class Phase { kPost, kMeet, kFill, kTake, kNext, kStuck };

  // Blocks of `count` elements that a rank gives.
  size_t InputBlocks() const {
    const bool many =
        what_.kind == Kind::kReduceScatter || what_.kind == Kind::kAlltoAll || what_.kind == Kind::kScatter;
    return many ? static_cast<size_t>(const_cast<CollectiveWork*>(this)->communicator().ranks) : 1;
  }

  bool Gives() {
    const bool from_root = what_.kind == Kind::kBroadcast || what_.kind == Kind::kScatter;
    return !from_root || communicator().rank == what_.root;
  }

  bool Receives() {
    const bool to_root = what_.kind == Kind::kReduce || what_.kind == Kind::kGather;
    return !to_root || communicator().rank == what_.root;
  }

  void Post() {
    what_.number = communicator().posted++;
    slot().recent[what_.number % kRemembered] = what_;
    slot().posted = what_.number + 1;
    phase_ = Phase::kMeet;
  }

  bool Meet() {
    const uint64_t needed = what_.number + 1;
    if (!OthersAre(communicator(), [&](const Segment::Slot& other) { return other.posted >= needed; })) return false;
    for (int rank = 0; rank < communicator().ranks; ++rank) {
      const Segment::Slot& other = segment().slots[rank];
      if (other.posted > what_.number + kRemembered) continue;
      if (Same(other.recent[what_.number % kRemembered], what_)) continue;
      if (Number("FAKE_HANG", 0) == 0) {
        BreakRule("rank " + std::to_string(communicator().rank) + " and rank " + std::to_string(rank) +
                  " of a communicator call different collectives; rank " + std::to_string(communicator().rank) + ":" +
                  History(slot()) + "\n  rank " + std::to_string(rank) + ":" + History(other));
      }
      phase_ = Phase::kStuck;
      return false;
    }
    phase_ = Phase::kFill;
    return true;
  }

  void Arrive() { slot().steps = ++communicator().steps; }
  bool Arrived() {
    const uint64_t needed = communicator().steps;
    return OthersAre(communicator(), [needed](const Segment::Slot& other) { return other.steps >= needed; });
  }

  size_t Count() const { return std::min<size_t>(part_, what_.count - first_); }
  std::byte* Area(int rank, size_t block = 0) { return segment().areas[rank] + block * part_ * size_; }

  void Fill() {
    if (!Gives()) return;
    for (size_t block = 0; block < InputBlocks(); ++block) {
      const Address from = call_.send + (block * what_.count + first_) * size_;
      if (const std::byte* const input = Memory(from, Count() * size_); input != nullptr) {
        std::memcpy(Area(communicator().rank, block), input, Count() * size_);
      } else {
        BreakRule("the input of a collective was freed before it ran");
      }
    }
  }

  void Put(size_t block, const std::byte* from) {
    const Address to = call_.receive + (block * what_.count + first_) * size_;
    if (std::byte* const output = Memory(to, Count() * size_); output != nullptr) {
      std::memcpy(output, from, Count() * size_);
    } else {
      BreakRule("the output of a collective was freed before it ran");
    }
  }

  void Take() {
    if (!Receives()) return;
    const int rank = communicator().rank;
    const auto own = static_cast<size_t>(rank);
    switch (what_.kind) {
      case Kind::kAllReduce:
      case Kind::kReduce:
        return PutReduced(0);
      case Kind::kReduceScatter:
        return PutReduced(own);
      case Kind::kBroadcast:
        return Put(0, Area(what_.root));
      case Kind::kScatter:
        return Put(0, Area(what_.root, own));
      case Kind::kAllGather:
      case Kind::kGather:
        for (int from = 0; from < communicator().ranks; ++from) Put(static_cast<size_t>(from), Area(from));
        return;
      case Kind::kAlltoAll:
        for (int from = 0; from < communicator().ranks; ++from) Put(static_cast<size_t>(from), Area(from, own));
        return;
      case Kind::kNone:
        return;
    }
  }

  // The data has as many parts as there are ranks; the sum of each part begins with another rank.
  void PutReduced(size_t block) {
    static const bool by_rank = [] {
      const char* const order = std::getenv("FAKE_NCCL_ORDER");
      return order != nullptr && std::strcmp(order, "rank") == 0;
    }();
    const auto ranks = static_cast<size_t>(communicator().ranks);
    std::vector<std::byte> factor = call_.factor;
    if (call_.device_factor != 0) {
      factor.resize(size_);
      if (const std::byte* const scalar = Memory(call_.device_factor, size_); scalar != nullptr)
        std::memcpy(factor.data(), scalar, size_);
    }
    std::vector<std::byte> result(Count() * size_);
    const size_t stretch = std::max<size_t>(1, (what_.count + ranks - 1) / ranks);
    for (size_t i = 0; i < Count();) {
      const size_t turn = (first_ + i) / stretch;
      const size_t length = std::min(Count() - i, (turn + 1) * stretch - (first_ + i));
      std::vector<const std::byte*> inputs;
      for (size_t n = 0; n < ranks; ++n) {
        const size_t rank = by_rank ? n : (turn + 1 + n) % ranks;
        inputs.push_back(Area(static_cast<int>(rank), block) + i * size_);
      }
      Reduce(what_.type, what_.operation, factor.data(), inputs, result.data() + i * size_, length);
      i += length;
    }
    Put(0, result.data());
  }

  const CollectiveCall call_;
  Description what_;
  Phase phase_ = Phase::kPost;
  size_t size_ = 1;
  size_t part_ = 1;   // elements
  size_t first_ = 0;  // element of the part
};

// The sends and receives of a group, all at the same time. Messages of a pair of ranks go through a pipe, each behind
// its size.
class MessagesWork : public CommunicatorWork {
 public:
  MessagesWork(std::shared_ptr<Communicator> communicator, const std::vector<MessageCall>& calls)
      : CommunicatorWork(std::move(communicator)) {
    for (const MessageCall& call : calls) queues_[{call.peer, call.sends}].push_back({call, 0, false});
  }

 protected:
  bool Move() override {
    bool moved = false;
    for (auto& [pair, transfers] : queues_) {
      while (!transfers.empty()) {
        Transfer& transfer = transfers.front();
        if (!(transfer.call.sends ? Send(&transfer) : Receive(&transfer))) break;
        moved = true;
        if (transfer.headed && transfer.done == transfer.call.bytes) transfers.pop_front();
      }
    }
    if (std::ranges::all_of(queues_, [](const auto& entry) { return entry.second.empty(); })) End();
    return moved;
  }

 private:
  struct Transfer {
    MessageCall call;
    size_t done = 0;
    bool headed = false;  // the size is through
  };

  static void Write(Segment::Pipe* pipe, const std::byte* from, size_t bytes) {
    for (size_t i = 0; i < bytes;) {
      const size_t at = (pipe->written + i) % kPipeBytes;
      const size_t piece = std::min(bytes - i, kPipeBytes - at);
      std::memcpy(pipe->data + at, from + i, piece);
      i += piece;
    }
    pipe->written += bytes;
  }

  static void Read(Segment::Pipe* pipe, std::byte* to, size_t bytes) {
    for (size_t i = 0; i < bytes;) {
      const size_t at = (pipe->read + i) % kPipeBytes;
      const size_t piece = std::min(bytes - i, kPipeBytes - at);
      std::memcpy(to + i, pipe->data + at, piece);
      i += piece;
    }
    pipe->read += bytes;
  }

  bool Send(Transfer* transfer) {
    Segment::Pipe* const pipe = &segment().pipes[communicator().rank][transfer->call.peer];
    const size_t room = kPipeBytes - (pipe->written - pipe->read);
    if (!transfer->headed) {
      if (room < sizeof(uint64_t)) return false;
      const uint64_t size = transfer->call.bytes;
      Write(pipe, reinterpret_cast<const std::byte*>(&size), sizeof size);
      transfer->headed = true;
      return true;
    }
    const size_t bytes = std::min(room, transfer->call.bytes - transfer->done);
    if (bytes == 0) return false;
    const std::byte* const from = Memory(transfer->call.address + transfer->done, bytes);
    if (from == nullptr) {
      BreakRule("memory that is sent was freed before");
      return false;
    }
    Write(pipe, from, bytes);
    transfer->done += bytes;
    return true;
  }

  bool Receive(Transfer* transfer) {
    Segment::Pipe* const pipe = &segment().pipes[transfer->call.peer][communicator().rank];
    const size_t there = pipe->written - pipe->read;
    if (!transfer->headed) {
      uint64_t size = 0;
      if (there < sizeof size) return false;
      Read(pipe, reinterpret_cast<std::byte*>(&size), sizeof size);
      if (size != transfer->call.bytes) {
        BreakRule("rank " + std::to_string(communicator().rank) + " receives " + std::to_string(transfer->call.bytes) +
                  " bytes from rank " + std::to_string(transfer->call.peer) + ", which sends " + std::to_string(size));
      }
      transfer->headed = true;
      return true;
    }
    const size_t bytes = std::min(there, transfer->call.bytes - transfer->done);
    if (bytes == 0) return false;
    std::byte* const to = Memory(transfer->call.address + transfer->done, bytes);
    if (to == nullptr) {
      BreakRule("memory that is received into was freed before");
      return false;
    }
    Read(pipe, to, bytes);
    transfer->done += bytes;
    return true;
  }

  std::map<std::pair<int, bool>, std::deque<Transfer>> queues_;
};

}  // namespace

std::string KindName(Kind kind) {
  static constexpr const char* kNames[] = {"nothing",       "ncclAllReduce", "ncclReduce",
                                           "ncclBroadcast", "ncclAllGather", "ncclReduceScatter",
                                           "ncclAlltoAll",  "ncclGather",    "ncclScatter"};
  return kNames[static_cast<size_t>(kind)];
}

Result MakeId(UniqueId* id) {
  const int file = memfd_create("fake NCCL", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Segment)) != 0) return ncclSystemError;
  IdContents contents = {kMagic, getpid(), file, std::random_device{}()};
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &contents, sizeof contents);
  return ncclSuccess;
}

Segment* OpenSegment(const UniqueId& id) {
  IdContents contents;
  std::memcpy(&contents, &id, sizeof contents);
  if (contents.magic != kMagic) return nullptr;
  const std::string path = "/proc/" + std::to_string(contents.process) + "/fd/" + std::to_string(contents.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  Segment* const segment = MapSegment(file);
  close(file);
  return segment;
}

Result Attach(Communicator* communicator, Segment* segment, std::string* why) {
  if (const int64_t ms = Number("FAKE_NCCL_INIT_MS", 0); ms > 0) usleep(static_cast<useconds_t>(ms * 1000));
  communicator->segment = segment;
  int32_t none = 0;
  if (!segment->ranks.compare_exchange_strong(none, communicator->ranks) && none != communicator->ranks) {
    *why = "the ranks disagree about their number";
    return ncclInvalidArgument;
  }
  Segment::Slot& slot = segment->slots[communicator->rank];
  slot.process = getpid();
  slot.device = communicator->device->number;
  slot.host = HostHash();
  uint32_t absent = Segment::Slot::kAbsent;
  if (!slot.state.compare_exchange_strong(absent, Segment::Slot::kAttached)) {
    *why = "two processes are rank " + std::to_string(communicator->rank);
    return ncclInvalidUsage;
  }
  const bool all = Await(communicator, [&] {
    return OthersAre(*communicator, [](const Segment::Slot& other) { return other.state != Segment::Slot::kAbsent; });
  });
  if (!all) return communicator->aborted ? ncclInternalError : ncclRemoteError;
  const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool can_share = fake_nccl_version() >= 23003;
  if (can_share && shared != nullptr && std::strcmp(shared, "1") == 0) return ncclSuccess;
  for (int other = 0; other < communicator->ranks; ++other) {
    if (other == communicator->rank) continue;
    const Segment::Slot& peer = segment->slots[other];
    if (peer.host == slot.host && peer.device == slot.device) {
      *why = can_share ? "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable "
                         "this configuration."
                       : "Duplicate GPU detected : rank " + std::to_string(communicator->rank) + " and rank " +
                             std::to_string(other) + " both on CUDA device " + std::to_string(slot.device);
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

bool Await(Communicator* communicator, const std::function<bool()>& done) {
  for (uint64_t turns = 1; !done(); ++turns) {
    if (communicator->aborted) return false;
    if (turns % 64 == 0 && NoticeDeath(communicator)) return false;
    usleep(turns < 100 ? 20 : 200);
  }
  return true;
}

MakeWork MakeCollective(std::shared_ptr<Communicator> communicator, const CollectiveCall& call) {
  return [=] { return std::make_unique<CollectiveWork>(communicator, call); };
}

MakeWork MakeMessages(std::shared_ptr<Communicator> communicator, std::vector<MessageCall> calls) {
  return [=] { return std::make_unique<MessagesWork>(communicator, calls); };
}

}  // namespace fake_gpu
