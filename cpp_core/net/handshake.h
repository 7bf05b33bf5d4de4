// What the start-up messages contain, and how two handshakes differ. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/bootstrap.h"

namespace horocache::net {

struct Hello {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t pid = 0;
  std::array<uint8_t, 4> byte_order{};  // the bytes of the number 0x01020304 in memory
  std::string job;
  Handshake handshake;
};

std::string EncodeHello(const Hello& hello);
std::optional<Hello> DecodeHello(std::string_view payload);
std::array<uint8_t, 4> OwnByteOrder();

std::string EncodeStatus(const Status& status);
std::optional<Status> DecodeStatus(std::string_view payload);

std::string EncodeNumbers(const std::vector<uint32_t>& numbers);
std::optional<std::vector<uint32_t>> DecodeNumbers(std::string_view payload);

std::string EncodeTexts(const std::vector<std::string>& texts);
std::optional<std::vector<std::string>> DecodeTexts(std::string_view payload);

// One line per value that is not equal on all ranks, with who has what; empty if there is none. The first hello is rank
// 0's.
// `job_ranks`: how ranks read; empty: as they are.
std::string Differences(const std::vector<const Hello*>& hellos, const std::vector<int>& job_ranks = {});

// "rank 3", "ranks 1, 2 and 5", "ranks 1, 2, 3 and 97 others".
std::string NameRanks(const std::vector<int>& ranks);
// A rank waits this much beyond its time limit for the verdict, which names the ranks that are missing.
inline constexpr int64_t kLastWordNs = 2 * kNsPerS;
// `why` as others are told it: an interrupt is that of `who`, and everything else names ranks.
Status ForOthers(const std::string& who, const Status& why);

}  // namespace horocache::net
