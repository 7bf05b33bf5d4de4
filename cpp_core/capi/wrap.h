// Defines hc_runtime, the runtime of hc.h.
#pragma once

#include <memory>

#include "runtime/runtime.h"

struct hc_runtime {
  horocache::runtime::Runtime* runtime;
  std::unique_ptr<horocache::runtime::Runtime> owned;  // null if another binding owns the runtime
};
