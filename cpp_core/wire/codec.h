// Messages as bytes. Every decoder treats its input as hostile: bounds are checked before anything is allocated, enums
// are range-checked, trailing bytes are an error (kCorrupt). Little-endian, varint counts, a magic and a version byte
// first.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "wire/message.h"

namespace horocache::wire {

inline constexpr uint8_t kProtocolVersion = 5;
inline constexpr size_t kMaxNameBytes = 4096;  // a longer tensor name is kInvalidArgument at submission

void Encode(const RequestList& list, std::string* out);   // appends
void Encode(const ResponseList& list, std::string* out);  // appends
StatusOr<RequestList> DecodeRequestList(std::span<const std::byte> bytes);
StatusOr<ResponseList> DecodeResponseList(std::span<const std::byte> bytes);

}  // namespace horocache::wire
