// The backend of the fake device. It waits for the tensors' event, copies them on a stream of the device into a fusion
// buffer, runs the collective there with a backend for the host, and copies the result back on the stream: the steps
// and waits of a backend for a real device without a collective library.
#pragma once

#include <cstdint>
#include <memory>

#include "data/backend.h"

namespace horocache::testing {

// Makes the backend "fakedevice" on a fake device of its own, each of whose pieces of work takes `delay_ns` or longer.
// `memory` is for its backend for the host alone.
StatusOr<std::unique_ptr<data::Backend>> MakeFakeDeviceBackend(const data::SharedArea& memory,
                                                               const data::BackendOptions& options, int64_t delay_ns);

}  // namespace horocache::testing
