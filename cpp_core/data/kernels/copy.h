// Copies that may write around the caches.
//
// Note [Writing around the caches]
// One rank writes a slot, the others read it, and then the rank writes it again. A plain store to a line that other
// processors have cached first invalidates their copies, one line after the other: 2.3 GB/s, measured on a virtual
// machine whose two processors share no cache. A streaming store does not wait for the other caches: 30 GB/s there, and
// the readers are as fast as before. So ranks write slots with streaming stores from kStreamBytes on; below that size
// the latency of the write to memory costs more. Large private outputs that are not also inputs are streamed, too: a
// plain store would read the line first.
// A release store does not order earlier streaming stores, so a fence follows them before anything is published.
#pragma once

#include <cstddef>

namespace horocache::data {

// Size of a copy in bytes from which streaming stores are faster than plain ones.
inline constexpr size_t kStreamBytes = 2048;

// As memcpy. With `stream` it uses streaming stores and a fence, if the processor has them and `bytes` is at least
// kStreamBytes.
void Copy(std::byte* to, const std::byte* from, size_t bytes, bool stream);

}  // namespace horocache::data
