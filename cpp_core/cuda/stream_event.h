// The moment when a stream of the program has done what it had to do at some call, for example to compute a tensor.
//
// Threads: any, one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "cuda/device.h"

namespace horocache::cuda {

class StreamEvent {
 public:
  // Marks the stream as it is now. `stream` is a handle of the device's context; null is its legacy default stream.
  // kUnsupported if the program captures a graph on the stream: what is submitted then would not run when the graph
  // does.
  static StatusOr<StreamEvent> Record(std::shared_ptr<Device> device, StreamHandle stream);

  // True once the stream has come to the mark; also if the device has failed, which its next call shows.
  bool Happened() const;
  // Makes `stream`, of the same device, wait for the mark. Requires a Scope.
  Status HoldBack(Stream* stream) const { return stream->Await(event_); }
  int device() const { return device_->number(); }
  // True if both are marks of one stream.
  bool SameStream(const StreamEvent& other) const { return stream_ == other.stream_ && device_ == other.device_; }
  // True if this mark was made before the other one.
  bool Before(const StreamEvent& other) const { return number_ < other.number_; }

 private:
  StreamEvent(std::shared_ptr<Device> device, StreamHandle stream, Event event, uint64_t number)
      : device_(std::move(device)), stream_(stream), event_(std::move(event)), number_(number) {}

  std::shared_ptr<Device> device_;
  StreamHandle stream_ = nullptr;
  Event event_;
  uint64_t number_ = 0;  // of the marks of this process
};

}  // namespace horocache::cuda
