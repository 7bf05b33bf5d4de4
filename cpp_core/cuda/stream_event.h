// The moment when a stream of the program has done what it had to do at some call, for example to compute a tensor.
//
// Threads: any, one at a time.
#pragma once

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
  int device() const { return device_->number(); }

 private:
  StreamEvent(std::shared_ptr<Device> device, Event event) : device_(std::move(device)), event_(std::move(event)) {}

  std::shared_ptr<Device> device_;
  Event event_;
};

}  // namespace horocache::cuda
