// What hc.h calls a runtime.
#pragma once

#include <memory>

#include "runtime/runtime.h"

struct hc_runtime {
  horocache::runtime::Runtime* runtime;
  std::unique_ptr<horocache::runtime::Runtime> owned;  // null where another binding owns it
};
