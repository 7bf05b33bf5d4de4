// HorocacheCountStep: counts a step of an optimizer each time that the graph runs.
#include "tensorflow/kernel.h"
#include "tensorflow/kernels.h"

namespace horocache::tensorflow {
namespace {

void* CreateNothing(TF_OpKernelConstruction*) { return nullptr; }
void DeleteNothing(void*) {}

void ComputeCountStep(void*, TF_OpKernelContext*) {
  const Bridge::Use use(Bridge::Get());
  if (use) use.api().count_step(use.runtime());
}

}  // namespace

const KernelFunctions kCountStep = {&CreateNothing, &ComputeCountStep, &DeleteNothing};

}  // namespace horocache::tensorflow
