// Copies that may go around the caches.
//
// Note [Writing around the caches]
// A slot is written by one rank, read by the others, and written again. A plain store to a line that others have in
// their caches first has to take it away from them, one line after the other: on a virtual machine whose two processors
// share no cache that was measured at 2.3 GB/s. A streaming store needs no answer: 30 GB/s, and the readers are as fast
// as before. So slots are written by streaming stores from kStreamBytes on; below that the latency of the write to
// memory costs more. Large private outputs that are not also inputs are streamed too: a plain store would read the
// line first.
// A streaming store is not ordered by a release store, so it is fenced before anything is published.
#pragma once

#include <cstddef>

namespace horocache::data {

inline constexpr size_t kStreamBytes = 2048;

// As memcpy; with `stream` around the caches, and fenced, where the processor can and `bytes` are worth it.
void Copy(std::byte* to, const std::byte* from, size_t bytes, bool stream);

}  // namespace horocache::data
