// The contents of the start-up messages, and the comparison of handshakes. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/bootstrap/bootstrap.h"

namespace horocache::net {

struct Hello {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t pid = 0;
  std::array<uint8_t, 4> byte_order{};  // the number 0x01020304 as it lies in memory
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

// A table with one line per value that is not equal on all ranks, and the ranks that have each variant; empty if all
// are equal. The first hello is rank 0's. `job_ranks`: the numbers that the table shows for the ranks; empty: the ranks
// themselves.
std::string Differences(const std::vector<const Hello*>& hellos, const std::vector<int>& job_ranks = {});

// Names ranks in messages: "rank 3", "ranks 1, 2 and 5", "ranks 1, 2, 3 and 97 others".
std::string NameRanks(const std::vector<int>& ranks);
// How long a rank waits, after its own time limit, for rank 0's outcome, which names the missing ranks.
inline constexpr int64_t kLastWordNs = 2 * kNsPerS;
// The status that the other ranks get for `why`: an interrupt (kAborted) is attributed to `who`; other messages already
// name ranks.
Status ForOthers(const std::string& who, const Status& why);

}  // namespace horocache::net
