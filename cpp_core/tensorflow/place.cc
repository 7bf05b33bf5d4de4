// HorocachePlace: returns this rank's number or another property of it. The graph may run in another job than the one
// in which it was made, so the property is read when the graph runs.
#include <cstdint>

#include "tensorflow/kernel.h"
#include "tensorflow/kernels.h"

namespace horocache::tensorflow {
namespace {

struct Place {
  hc_property property = HC_RANK;
  int32_t process_set = 0;  // 0: the job

  explicit Place(Attributes&& attributes) {
    property = static_cast<hc_property>(attributes.Integer("property"));
    process_set = static_cast<int32_t>(attributes.Integer("process_set"));
  }
};

void* CreatePlace(TF_OpKernelConstruction* construction) { return new Place(Attributes(construction)); }
void DeletePlace(void* self) { delete static_cast<Place*>(self); }

void ComputePlace(void* kernel, TF_OpKernelContext* context) {
  const Place& self = *static_cast<Place*>(kernel);
  Call call(context);
  const Bridge::Use use(Bridge::Get(), Bridge::For::kQuestions);
  if (!use) {
    call.status().Set(kFailedPrecondition, kNotRunning);
    return;
  }
  const int value = self.process_set == 0 ? use.api().get(use.runtime(), self.property)
                                          : use.api().get_in_set(use.runtime(), self.process_set, self.property);
  if (self.process_set != 0 && self.property == HC_SIZE && value == 0) {
    call.status().Set(kInvalidArgument, "there is no process set " + std::to_string(self.process_set));
    return;
  }
  const OwnedTensor out = call.Allocate(0, kInt32, {}, sizeof(int32_t));
  if (call.ok()) *static_cast<int32_t*>(Tf().TensorData(out.get())) = value;
}

}  // namespace

const KernelFunctions kPlace = {&CreatePlace, &ComputePlace, &DeletePlace};

}  // namespace horocache::tensorflow
