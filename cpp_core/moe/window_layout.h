// The parts of a window's block. See window.h for their writers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/memory.h"
#include "moe/window.h"

namespace horocache::moe {

// Cells begin at cache lines.
inline size_t CellBytes(int64_t bytes) { return RoundUp(static_cast<size_t>(bytes), kCacheLine); }

inline uint64_t WordOf(uint32_t round, int32_t rows) { return uint64_t{round} << 32 | static_cast<uint32_t>(rows); }
inline uint32_t RoundOf(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
inline int32_t RowsOf(uint64_t word) { return static_cast<int32_t>(word & 0xffffffff); }

// Written by the owner of the block; the bell by every rank.
struct Window::Head {
  net::DoorbellWords bell;  // first, see BellOf
  alignas(kCacheLine) std::atomic<uint32_t> released;
};

// Why a round failed on the rank that writes it. It lies in the blocks of the readers: the writer may leave the job
// before they read it, and its own block is freed then.
struct alignas(kCacheLine) Window::Failure {
  std::atomic<uint64_t> round;  // stored last; 0: none
  std::atomic<int32_t> code;
  std::atomic<uint32_t> bytes;
  static constexpr size_t kMostBytes = 1000;
  std::array<std::atomic<char>, kMostBytes> text;
};

struct alignas(kCacheLine) Window::CellWord {
  std::atomic<uint64_t> word;  // stored last
  std::atomic<uint32_t> tag;
  std::array<std::atomic<int64_t>, 2> row_bytes;  // of a batch: of its rows, and of those of its result
  std::atomic<int64_t> spill;  // of a batch that does not fit: the offset of its memory in the writer's region
};

}  // namespace horocache::moe
