// The encoding of messages as bytes: little-endian, with varint counts, after two bytes of magic, the kind and a
// version byte.
//
// Every decoder treats its input as hostile: it checks bounds before it allocates, checks the range of enums, and
// rejects trailing bytes (kCorrupt).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "wire/message.h"

namespace horocache::wire {

inline constexpr uint8_t kProtocolVersion = 8;
inline constexpr size_t kMaxNameBytes = 4096;  // a longer tensor name is kInvalidArgument at submission

void Encode(const RequestList& list, std::string* out);   // appends
void Encode(const ResponseList& list, std::string* out);  // appends
StatusOr<RequestList> DecodeRequestList(std::span<const std::byte> bytes);
StatusOr<ResponseList> DecodeResponseList(std::span<const std::byte> bytes);

}  // namespace horocache::wire
