#include "observe/flight_recorder.h"

#include <algorithm>
#include <cstring>

namespace horocache::observe {
namespace {

using Words = std::array<uint64_t, 15>;

enum Field : size_t {
  kAt,
  kWhat,
  kHandle,
  kBytes,
  kTensors,
  kSequence,
  kText
};  // indices of a record's words, after its number

// Copies at most `most` bytes of `text` to `out` and returns how many; a longer text has ".." in place of its middle.
size_t Shorten(std::string_view text, size_t most, char* out) {
  if (text.size() <= most) {
    std::memcpy(out, text.data(), text.size());
    return text.size();
  }
  const size_t head = most / 2 - 1, tail = most - head - 2;
  std::memcpy(out, text.data(), head);
  std::memcpy(out + head, "..", 2);
  std::memcpy(out + head + 2, text.data() + text.size() - tail, tail);
  return most;
}

}  // namespace

std::string_view KindName(FlightRecorder::Kind kind) {
  static constexpr std::array<std::string_view, FlightRecorder::kNumKinds> kNames = {"submitted", "started", "done",
                                                                                     "failed", "note"};
  return kNames.at(static_cast<size_t>(kind));
}

void FlightRecorder::Add(const Event& event) {
  const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  Record& record = ring_[number % kCapacity];
  uint64_t held = record.number.load(std::memory_order_relaxed);
  // True if another thread is writing the record (kClaimed is the highest bit) or has written a later event to it: this
  // event is left out.
  if (held > number) return;
  if (!record.number.compare_exchange_strong(held, number | kClaimed, std::memory_order_acquire,
                                             std::memory_order_relaxed)) {
    return;
  }
  std::atomic_thread_fence(std::memory_order_release);
  Words words{};
  words[kAt] = static_cast<uint64_t>(event.at_ns);
  words[kHandle] = static_cast<uint64_t>(event.handle);
  words[kBytes] = static_cast<uint64_t>(event.bytes);
  words[kSequence] = event.sequence;
  const size_t length = Shorten(event.text, kTextBytes, reinterpret_cast<char*>(&words[kText]));
  words[kTensors] = event.tensors | static_cast<uint64_t>(length) << 32;
  words[kWhat] = static_cast<uint64_t>(event.kind) | static_cast<uint64_t>(event.op) << 8 |
                 static_cast<uint64_t>(event.process_set) << 32;
  const size_t used = kText + (length + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  for (size_t i = 0; i < used; ++i) record.words[i].store(words[i], std::memory_order_relaxed);
  record.number.store(number, std::memory_order_release);
}

FlightRecorder::Snapshot FlightRecorder::Take() const {
  Snapshot out;
  out.events.reserve(kCapacity);
  out.texts.reserve(kCapacity);  // never reallocated: events have views of its elements
  const uint64_t end = next_.load(std::memory_order_acquire);
  for (uint64_t number = end > kCapacity ? end - kCapacity : 1; number < end; ++number) {
    const Record& record = ring_[number % kCapacity];
    if (record.number.load(std::memory_order_acquire) != number) continue;
    Words words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = record.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (record.number.load(std::memory_order_relaxed) != number) continue;
    const size_t length = std::min<size_t>(words[kTensors] >> 32, kTextBytes);
    out.texts.emplace_back(reinterpret_cast<const char*>(&words[kText]), length);
    out.events.push_back({.number = number,
                          .at_ns = static_cast<int64_t>(words[kAt]),
                          .kind = static_cast<Kind>(words[kWhat] & 0xFF),
                          .op = static_cast<wire::Op>(words[kWhat] >> 8 & 0xFF),
                          .process_set = static_cast<uint32_t>(words[kWhat] >> 32),
                          .tensors = static_cast<uint32_t>(words[kTensors]),
                          .handle = static_cast<int64_t>(words[kHandle]),
                          .bytes = static_cast<int64_t>(words[kBytes]),
                          .sequence = words[kSequence],
                          .text = out.texts.back()});
  }
  return out;
}

}  // namespace horocache::observe
