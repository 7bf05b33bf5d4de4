// The last events of a rank. They are recorded at all times, for the flight record that is written after an error or on
// request.
//
// Note [Lock-free event ring]
// The recorder is a ring of records. A writer takes the next number, claims the record of that number (event 5,000 goes
// into record 904 of 4,096), and writes it word by word, the number last. A reader keeps the records whose number is
// the same before and after it has read them. No thread waits: a writer leaves its event out if its record is claimed
// by another thread, one that was stopped while the others wrote a whole ring.
//
// Threads: any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "wire/message.h"

namespace horocache::observe {

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 4096;  // events
  enum class Kind : uint8_t { kSubmitted, kStarted, kDone, kFailed, kNote };
  static constexpr int kNumKinds = 5;

  struct Event {
    uint64_t number = 0;  // counts from 1
    int64_t at_ns = 0;    // time of the steady clock
    Kind kind = Kind::kNote;
    wire::Op op = wire::Op::kAllreduce;  // op to sequence describe the operation; unused in notes
    uint32_t process_set = 0;
    uint32_t tensors = 0;
    int64_t handle = -1;
    int64_t bytes = 0;
    uint64_t sequence = 0;  // of a started operation: its position in the agreed order of the process set
    std::string_view text;  // name of the operation, or the note; a long text loses its middle
  };

  FlightRecorder() : ring_(kCapacity) {}

  // Records `event` under the next number; `event.number` is ignored.
  void Add(const Event& event);
  void Note(std::string_view text, int64_t now_ns) { Add({.at_ns = now_ns, .text = text}); }

  struct Snapshot {
    std::vector<Event> events;  // oldest first; their text views point into `texts`
    std::vector<std::string> texts;
  };
  Snapshot Take() const;

 private:
  static constexpr size_t kWords = 16, kTextWords = 9;
  static constexpr size_t kTextBytes = kTextWords * sizeof(uint64_t);
  static constexpr uint64_t kClaimed = uint64_t{1} << 63;
  struct alignas(kCacheLine) Record {
    std::atomic<uint64_t> number{0};  // with kClaimed while a thread writes the record
    std::array<std::atomic<uint64_t>, kWords - 1> words{};
  };

  std::vector<Record> ring_;
  std::atomic<uint64_t> next_{1};
};

// "submitted", "started", ...
std::string_view KindName(FlightRecorder::Kind kind);

}  // namespace horocache::observe
