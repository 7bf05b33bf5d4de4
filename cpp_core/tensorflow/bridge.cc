#include "tensorflow/bridge.h"

#include <mutex>

namespace horocache::tensorflow {

Bridge& Bridge::Get() {
  static Bridge* const bridge = new Bridge;  // never destroyed: TensorFlow's threads may outlive static objects
  return *bridge;
}

void Bridge::Attach(const hc_api* api, hc_runtime* runtime) {
  const std::unique_lock lock(mutex_);
  api_ = api;
  runtime_ = runtime;
  ++session_;
}

void Bridge::Detach() {
  const std::unique_lock lock(mutex_);
  api_ = nullptr;
  runtime_ = nullptr;
}

Bridge::Use::Use(Bridge& bridge, For what) {
  if (bridge.forked_.load()) {
    if (what == For::kOperations) return;
  } else {
    lock_ = std::shared_lock(bridge.mutex_);
  }
  api_ = bridge.api_;
  runtime_ = bridge.runtime_;
  session_ = bridge.session_;
}

}  // namespace horocache::tensorflow
