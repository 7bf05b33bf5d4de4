#include "cuda/stream_event.h"

#include <atomic>

namespace horocache::cuda {
StatusOr<StreamEvent> StreamEvent::Record(std::shared_ptr<Device> device, StreamHandle stream) {
  const Device::Scope scope(*device);
  HC_RETURN_IF_ERROR(scope.status());
  HC_RETURN_IF_ERROR(device->CheckNotCaptured(stream));
  StatusOr<Event> event = Event::Make(device);
  if (!event.ok()) return event.status();
  HC_RETURN_IF_ERROR(event->Record(stream));
  static std::atomic<uint64_t> marks{0};
  return StreamEvent(std::move(device), stream, std::move(*event), ++marks);
}

bool StreamEvent::Happened() const {
  const Device::Scope scope(*device_);
  if (!scope.status().ok()) return true;
  const StatusOr<bool> happened = event_.Happened();
  return !happened.ok() || *happened;
}

}  // namespace horocache::cuda
