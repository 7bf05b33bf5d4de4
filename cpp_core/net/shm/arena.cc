#include "net/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/futex.h"
#include "base/memory.h"
#include "control/bitvector.h"
#include "net/bootstrap/open_files.h"

namespace horocache::net {
namespace {

constexpr uint64_t kMagic = 0x616e657261636f68;  // "hocarena"
constexpr uint32_t kVersion = 5;
constexpr int64_t kDefaultWords = (int64_t{1} << 20) / 64 + 3;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kMaxRegionBytes = int64_t{1} << 42;
constexpr size_t kRingHeader = 3 * kCacheLine;  // head, tail, blocked: a line each, as their writers differ
// Upper limits of what the bit fields of a slot's word can hold (SlotWord in shm/message_link.cc).
constexpr int32_t kMaxMessageChunks = 1 << 11;
constexpr int64_t kMaxMessageChunkBytes = 512 << 10;
constexpr size_t kReserveStep = size_t{4} << 20;

std::string Megabytes(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

Status NoMemory(const ArenaLayout& layout, size_t total, std::string_view what, int error) {
  return Status(StatusCode::kOutOfMemory,
                "cannot " + std::string(what) + " " + Megabytes(total) + " (" + std::to_string(total) +
                    " bytes) of shared memory for " + std::to_string(layout.ranks) + " ranks with " +
                    std::to_string(layout.data_bytes) + " bytes each: " + std::strerror(error) +
                    "; lower HOROCACHE_SHM_BYTES or raise the memory limit");
}

// Opens a file of the kernel's internal tmpfs. It has no mount and no name, and only the memory limits its size.
int OpenMemfd() {
#ifndef MFD_NOEXEC_SEAL
  constexpr unsigned MFD_NOEXEC_SEAL = 0x8;
#endif
  const int fd = memfd_create("horocache", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create("horocache", MFD_CLOEXEC | MFD_ALLOW_SEALING);  // Linux before 6.3
}

// Allocates the pages now, so that a shortage is an error here and not a SIGBUS in the middle of a step. Returns 0 or
// errno. Works in steps, because a signal makes fallocate give back all pages of the interrupted call.
int Reserve(int fd, size_t total) {
  for (size_t at = 0; at < total;) {
    const size_t step = std::min(kReserveStep, total - at);
    if (fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(step)) == 0) {
      at += step;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

void Doorbell::Ring() { Ring(~0u); }
void Doorbell::RingForData() { Ring(kData); }

void Doorbell::Ring(uint32_t wanted) {
  words_->rung.fetch_add(1, std::memory_order_seq_cst);
  // An addition of 0 instead of a load: as a write it takes part in the single order of all writes to `armed`. That
  // also orders the caller's new work before the check that a sleeper makes after arming.
  if ((words_->armed.fetch_add(0, std::memory_order_seq_cst) & wanted) == 0) return;
  // Several threads may ring at once; the one that gets the bits makes the system call.
  const uint32_t who = words_->armed.exchange(0, std::memory_order_seq_cst);
  if (who == 0) return;
  // The bits may belong to a sleeper that armed after the first addition and waits for later work. The second addition
  // keeps it from sleeping with its bits cleared.
  words_->rung.fetch_add(1, std::memory_order_seq_cst);
  if (wakes_ != nullptr) wakes_->fetch_add(1, std::memory_order_relaxed);
  FutexWake(words_->rung, who);
}

void Doorbell::Arm(uint32_t who) { words_->armed.fetch_or(who, std::memory_order_seq_cst); }

void Doorbell::Disarm(uint32_t who) { words_->armed.fetch_and(~who, std::memory_order_seq_cst); }

void Doorbell::Sleep(uint32_t seen, uint32_t who, int64_t timeout_ns) {
  FutexWait(words_->rung, seen, timeout_ns, who);
  Disarm(who);
}

struct Arena::Header {
  uint64_t magic;
  uint32_t version;
  int32_t ranks;
  int64_t max_words;
  int64_t ring_bytes;
  int64_t data_bytes;
  int64_t message_chunk_bytes;
  int32_t message_chunks;
  int64_t region_bytes;
  uint64_t total;
};

// The first reason that a rank gives; written once.
struct Arena::Reason {
  std::atomic<uint32_t> begun;
  std::atomic<int32_t> code;  // stored last: publishes the text
  std::array<char, 500> text;

  void Record(StatusCode why_code, std::string_view why) {
    if (why_code == StatusCode::kOk || begun.exchange(1) != 0) return;
    std::memcpy(text.data(), why.data(), std::min(why.size(), text.size()));
    code.store(static_cast<int32_t>(why_code));
  }
  Status Get() const {
    const int32_t why = code.load();
    if (why <= 0 || why >= kNumStatusCodes) return Status::Ok();
    return {static_cast<StatusCode>(why), {text.data(), strnlen(text.data(), text.size())}};
  }
};

struct Arena::Seat {
  DoorbellWords doorbell;
  alignas(kCacheLine) std::atomic<RankState> state;
  alignas(kCacheLine) std::atomic<int64_t> ran_ns;
  alignas(kCacheLine) std::atomic<int64_t> computed_ns;
  std::atomic<int32_t> monitor_thread;
  Reason seen, left;  // why the job is lost: when the rank noticed, and when it left
  alignas(kCacheLine) std::atomic<uint32_t> message_blocked;
};

Status Arena::CheckLayout(ArenaLayout* layout) {
  if (layout->max_words == 0) layout->max_words = kDefaultWords;
  const auto within = [](int64_t value, int64_t least, int64_t most) { return value >= least && value <= most; };
  const bool good = within(layout->ranks, 1, 1 << 16) && within(layout->max_words, 1, int64_t{1} << 26) &&
                    within(layout->ring_bytes, 64, int64_t{1} << 30) &&
                    within(layout->data_bytes, 0, int64_t{1} << 40) &&
                    within(layout->message_chunks, 0, kMaxMessageChunks) &&
                    within(layout->message_chunk_bytes, 64, kMaxMessageChunkBytes) &&
                    within(layout->region_bytes, 0, kMaxRegionBytes);
  layout->region_bytes = layout->region_bytes / static_cast<int64_t>(kHugePage) * static_cast<int64_t>(kHugePage);
  if (good) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, "no arena can be laid out for " + std::to_string(layout->ranks) +
                                                  " ranks, " + std::to_string(layout->max_words) + " words, rings of " +
                                                  std::to_string(layout->ring_bytes) + " bytes, data areas of " +
                                                  std::to_string(layout->data_bytes) + " bytes and " +
                                                  std::to_string(layout->message_chunks) + " chunks of " +
                                                  std::to_string(layout->message_chunk_bytes) + " bytes");
}

Arena::Places Arena::Place(const ArenaLayout& layout) {
  const auto ranks = static_cast<size_t>(layout.ranks);
  Places places;
  places.seats = RoundUp(sizeof(Header), kCacheLine);
  places.words = places.seats + ranks * sizeof(Seat);
  // `round`, `count` and the first words share a cache line, so that reading a short snapshot costs one cache miss. The
  // line covers the first 64 cache entries and 16 bytes of payload.
  const size_t words = 2 + static_cast<size_t>(layout.max_words) + control::kMaxPayloadWords;
  places.words_stride = RoundUp(words * sizeof(uint64_t), kCacheLine);
  places.rings = places.words + 3 * ranks * places.words_stride;
  places.ring_stride = kRingHeader + RoundUp(static_cast<size_t>(layout.ring_bytes), kCacheLine);
  places.slots = places.rings + 2 * (ranks - 1) * places.ring_stride;
  places.taken = places.slots + ranks * ranks * sizeof(MessageSlots);
  places.taken_stride = RoundUp(ranks * sizeof(uint32_t), kCacheLine);
  places.chunks = RoundUp(places.taken + ranks * places.taken_stride, kPage);
  const auto chunks = ranks * static_cast<size_t>(layout.message_chunks);
  places.data = RoundUp(places.chunks + chunks * static_cast<size_t>(layout.message_chunk_bytes), kPage);
  places.data_stride = RoundUp(static_cast<size_t>(layout.data_bytes), kPage);
  places.total = places.data + ranks * places.data_stride;
  places.regions = RoundUp(places.total, kHugePage);
  return places;
}

size_t Arena::FileBytes() const {
  if (layout_.region_bytes == 0) return places_.total;
  return places_.regions + static_cast<size_t>(layout_.ranks) * static_cast<size_t>(layout_.region_bytes);
}

Status Arena::MapShared() {
  struct stat file{};
  if (fstat(fd_, &file) == 0) id_ = file.st_ino;
  // The reservation is not mapped in a child of fork, which must neither write into the job's memory nor keep it alive.
  base_ = static_cast<std::byte*>(MapReservation(fd_, 0, places_.total));
  if (base_ == nullptr) return NoMemory(layout_, places_.total, "map", errno);
  if (layout_.region_bytes > 0) {
    regions_ = SharedRegions::Map(fd_, places_.regions, static_cast<size_t>(layout_.region_bytes), layout_.ranks);
  }
  return Status::Ok();
}

StatusOr<std::shared_ptr<Arena>> Arena::CreateShared(const ArenaLayout& layout) {
  std::shared_ptr<Arena> arena(new Arena());
  arena->layout_ = layout;
  HC_RETURN_IF_ERROR(CheckLayout(&arena->layout_));
  arena->places_ = Place(arena->layout_);
  const size_t total = arena->places_.total;
  // A file beyond this limit would bring SIGXFSZ, which ends the process.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    if (total > limit.rlim_cur) return NoMemory(arena->layout_, total, "create (ulimit -f forbids it)", EFBIG);
    if (arena->FileBytes() > limit.rlim_cur) arena->layout_.region_bytes = 0;  // tensors then stay in private memory
  }
  arena->fd_ = OpenMemfd();
  if (arena->fd_ < 0) {
    return Status(StatusCode::kStartup, "memfd_create failed: " + ErrorText(errno));
  }
  if (ftruncate(arena->fd_, static_cast<off_t>(arena->FileBytes())) != 0)
    return NoMemory(arena->layout_, total, "size", errno);
  if (const int error = Reserve(arena->fd_, total); error != 0) {
    return NoMemory(arena->layout_, total, "reserve", error);
  }
  // Seals the size, so that no process can shrink the file under a peer that has mapped it.
  if (fcntl(arena->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status(StatusCode::kInternal, std::string("sealing the arena failed: ") + std::strerror(errno));
  }
  HC_RETURN_IF_ERROR(arena->MapShared());
  const ArenaLayout& l = arena->layout_;
  const Header header{
      kMagic,           kVersion,       l.ranks, l.max_words, l.ring_bytes, l.data_bytes, l.message_chunk_bytes,
      l.message_chunks, l.region_bytes, total};
  std::memcpy(arena->base_, &header, sizeof(header));
  return arena;
}

StatusOr<std::shared_ptr<Arena>> Arena::Attach(int fd) {
  std::shared_ptr<Arena> arena(new Arena());
  arena->fd_ = fd;
  const auto corrupt = [](const std::string& why) {
    return Status(StatusCode::kCorrupt, "the shared memory that rank 0 handed over is not an arena: " + why);
  };
  struct stat file{};
  if (fstat(fd, &file) != 0) return corrupt(std::strerror(errno));
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return corrupt("it is not sealed against shrinking");
  Header header{};
  if (pread(fd, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) return corrupt("it is too short");
  if (header.magic != kMagic) return corrupt("it does not begin with the magic number");
  if (header.version != kVersion) {
    return corrupt("its version is " + std::to_string(header.version) + ", this rank's is " + std::to_string(kVersion));
  }
  arena->layout_ = {header.ranks,          header.max_words,           header.ring_bytes,  header.data_bytes,
                    header.message_chunks, header.message_chunk_bytes, header.region_bytes};
  if (Status status = CheckLayout(&arena->layout_); !status.ok()) return corrupt(status.message());
  arena->places_ = Place(arena->layout_);
  const size_t needed = arena->FileBytes();
  if (header.total != arena->places_.total || static_cast<uint64_t>(file.st_size) != needed) {
    return corrupt("it has " + std::to_string(file.st_size) + " bytes, its layout needs " + std::to_string(needed));
  }
  HC_RETURN_IF_ERROR(arena->MapShared());
  return arena;
}

std::shared_ptr<Arena> Arena::CreateOnHeap(const ArenaLayout& layout) {
  std::shared_ptr<Arena> arena(new Arena());
  arena->layout_ = layout;
  if (!CheckLayout(&arena->layout_).ok()) return nullptr;
  arena->places_ = Place(arena->layout_);
  // Anonymous pages instead of operator new: they are zero without being touched.
  void* memory =
      mmap(nullptr, arena->places_.total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  arena->base_ = static_cast<std::byte*>(memory);
  if (arena->layout_.region_bytes > 0) {
    arena->regions_ = SharedRegions::OnHeap(static_cast<size_t>(arena->layout_.region_bytes), arena->layout_.ranks);
  }
  return arena;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, places_.total);
  CloseFd();
}

void Arena::CloseFd() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

// Nothing is constructed: zero bytes are the initial value of every word in the arena. So a page stays untouched until
// its owner writes to it.
Arena::Seat& Arena::seat(int rank) {
  return *reinterpret_cast<Seat*>(base_ + places_.seats + static_cast<size_t>(rank) * sizeof(Seat));
}

Doorbell Arena::doorbell(int rank) { return Doorbell(&seat(rank).doorbell); }
std::atomic<RankState>& Arena::state(int rank) { return seat(rank).state; }
std::atomic<int64_t>& Arena::ran_ns(int rank) { return seat(rank).ran_ns; }
std::atomic<int64_t>& Arena::computed_ns(int rank) { return seat(rank).computed_ns; }

void Arena::NoteJobLost(int rank, StatusCode code, std::string_view why) {
  seat(rank).seen.Record(code, why);
  RankState running = RankState::kRunning;
  seat(rank).state.compare_exchange_strong(running, RankState::kJobLost);
}

void Arena::LeaveJobLost(int rank, StatusCode code, std::string_view why) {
  seat(rank).left.Record(code, why);
  seat(rank).state.store(RankState::kLeftJobLost);
}

Status Arena::WhyJobLost(int rank) {
  const Seat& other = seat(rank);
  const RankState state = other.state.load();
  Status why = state == RankState::kLeftJobLost ? other.left.Get() : Status::Ok();
  if (!why.ok() || (state != RankState::kJobLost && state != RankState::kLeftJobLost)) return why;
  return other.seen.Get();
}

std::atomic<int32_t>& Arena::monitor_thread(int rank) { return seat(rank).monitor_thread; }

Arena::Words Arena::WordsAt(size_t index) {
  auto* first = reinterpret_cast<std::atomic<uint64_t>*>(base_ + places_.words + index * places_.words_stride);
  return {first, first + 1, first + 2};
}

Arena::Words Arena::hint(int rank) { return WordsAt(3 * static_cast<size_t>(rank)); }

Arena::Words Arena::snapshot(int rank, uint64_t round) {
  return WordsAt(3 * static_cast<size_t>(rank) + 1 + round % 2);
}

Arena::Ring Arena::ring(int from, int to) {
  const size_t index = from == 0 ? 2 * static_cast<size_t>(to - 1) : 2 * static_cast<size_t>(from - 1) + 1;
  std::byte* at = base_ + places_.rings + index * places_.ring_stride;
  return {reinterpret_cast<std::atomic<uint64_t>*>(at), reinterpret_cast<std::atomic<uint64_t>*>(at + kCacheLine),
          reinterpret_cast<std::atomic<uint32_t>*>(at + 2 * kCacheLine), at + kRingHeader,
          static_cast<size_t>(layout_.ring_bytes)};
}

Arena::MessagePath Arena::message_path(int from, int to) {
  const auto sender = static_cast<size_t>(from);
  const auto receiver = static_cast<size_t>(to);
  // A receiver's slots and `taken` words are contiguous, because it polls all of them.
  const size_t pair = receiver * static_cast<size_t>(layout_.ranks) + sender;
  auto* taken = reinterpret_cast<std::atomic<uint32_t>*>(base_ + places_.taken + receiver * places_.taken_stride);
  return {reinterpret_cast<MessageSlots*>(base_ + places_.slots) + pair, taken + sender};
}

std::atomic<uint32_t>& Arena::message_blocked(int rank) { return seat(rank).message_blocked; }

std::span<std::byte> Arena::message_chunk(int rank, int index) {
  const size_t number =
      static_cast<size_t>(rank) * static_cast<size_t>(layout_.message_chunks) + static_cast<size_t>(index);
  const auto bytes = static_cast<size_t>(layout_.message_chunk_bytes);
  return {base_ + places_.chunks + number * bytes, bytes};
}

std::span<std::byte> Arena::data(int rank) {
  return {base_ + places_.data + static_cast<size_t>(rank) * places_.data_stride,
          static_cast<size_t>(layout_.data_bytes)};
}

}  // namespace horocache::net
