// The functions of each kernel, for its registration.
#pragma once

#include "tensorflow/tf_api.h"

namespace horocache::tensorflow {

struct KernelFunctions {
  Create create;
  Compute compute;
  Delete destroy;
};

extern const KernelFunctions kSubmit, kSubmitInto, kWait, kWaitResults, kWaitJoin, kPlace, kCountStep;

inline constexpr char kNotRunning[] =
    "horocache has not been initialized in this process; call hvd.init() first. The child of a fork cannot use its "
    "parent's.";

}  // namespace horocache::tensorflow
