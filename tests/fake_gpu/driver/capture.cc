// Captures of streams, and graphs: the list of the captured calls, which a launch queues again.
#include <algorithm>

#include "driver/driver.h"

namespace fake_gpu {
namespace {

int StatusOf(const Stream& stream) { return stream.capture == nullptr ? 0 : stream.capture->invalid ? 2 : 1; }

// Takes the capture from all streams that have it.
void EndCapture(const std::shared_ptr<Capture>& capture) {
  for (const auto& [handle, stream] : state().streams) {
    if (stream->capture == capture) stream->capture = nullptr;
  }
}

bool IsLegacy(const void* handle) { return handle == nullptr || handle == reinterpret_cast<void*>(1); }

}  // namespace

FAKE_GPU_API Code cuStreamBeginCapture_v2(void* handle, int mode) {
  if (const Code refused = Enter(__func__)) return refused;
  if (IsLegacy(handle)) return k_STREAM_CAPTURE_UNSUPPORTED;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  if (mode < kGlobal || mode > kRelaxed) return k_INVALID_VALUE;
  if (stream->capture != nullptr) return k_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = ++state().last_capture;
  capture->mode = static_cast<CaptureMode>(mode);
  capture->thread = std::this_thread::get_id();
  std::erase_if(state().captures, [](const std::weak_ptr<Capture>& weak) { return weak.expired(); });
  state().captures.push_back(capture);
  stream->capture = std::move(capture);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuStreamEndCapture(void* handle, void** graph) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return k_ILLEGAL_STATE;
  EndCapture(capture);
  if (capture->mode != kRelaxed && capture->thread != std::this_thread::get_id()) return k_STREAM_CAPTURE_WRONG_THREAD;
  if (capture->invalid) return k_STREAM_CAPTURE_INVALIDATED;
  auto made = std::make_unique<Graph>();
  made->work = capture->work;
  *graph = made.get();
  state().graphs[made.get()] = std::move(made);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuStreamIsCapturing(void* handle, int* status) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  *status = StatusOf(*stream);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuStreamGetCaptureInfo_v3(void* handle, int* status, uint64_t* id, void** graph, const void***,
                                            const void***, size_t* dependencies) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  *status = StatusOf(*stream);
  if (stream->capture == nullptr) return k_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = stream->capture.get();
  if (dependencies != nullptr) *dependencies = stream->capture->work.empty() ? 0 : 1;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuGraphInstantiateWithFlags(void** runnable, void* graph, uint64_t) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  const auto found = state().graphs.find(graph);
  if (found == state().graphs.end()) return k_INVALID_VALUE;
  auto made = std::make_unique<Graph>(*found->second);
  *runnable = made.get();
  state().graphs[made.get()] = std::move(made);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuGraphLaunch(void* runnable, void* handle) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  const auto found = state().graphs.find(runnable);
  if (found == state().graphs.end()) return k_INVALID_VALUE;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  for (const MakeWork& make : found->second->work) {
    if (const Code refused = Enqueue(lock, stream, make)) return refused;
  }
  return k_SUCCESS;
}

FAKE_GPU_API Code cuGraphExecDestroy(void* runnable) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  return state().graphs.erase(runnable) == 1 ? k_SUCCESS : k_INVALID_VALUE;
}

FAKE_GPU_API Code cuGraphDestroy(void* graph) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  return state().graphs.erase(graph) == 1 ? k_SUCCESS : k_INVALID_VALUE;
}

}  // namespace fake_gpu
