// HorocacheSubmit and HorocacheSubmitInto: submit an operation and return at once.
#include <cstddef>
#include <memory>
#include <utility>

#include "tensorflow/kernel.h"
#include "tensorflow/kernels.h"

namespace horocache::tensorflow {
namespace {

// A node's request, except for the tensors.
struct Submit {
  std::string name, layers, backend;
  hc_request request = {};
  int num_splits = 0;  // 0, or 1 if the last input is the tensor of splits
  bool into = false;   // true if the results have the inputs' shapes and are outputs of this kernel

  Submit(Attributes&& attributes, bool makes_outputs) : into(makes_outputs) {
    name = attributes.Text("tensor_name");
    layers = attributes.Text("layers");
    backend = attributes.Text("backend");
    request.name = {name.data(), name.size()};
    request.layers = {layers.data(), layers.size()};
    request.backend = {backend.data(), backend.size()};
    request.op = static_cast<int32_t>(attributes.Integer("op"));
    request.reduce_op = static_cast<int32_t>(attributes.Integer("reduce_op"));
    request.root = static_cast<int32_t>(attributes.Integer("root"));
    request.prescale = attributes.Number("prescale");
    request.postscale = attributes.Number("postscale");
    request.process_set = static_cast<int32_t>(attributes.Integer("process_set"));
    request.group = attributes.Flag("group") ? 1 : 0;
    request.wait_follows = attributes.Flag("wait_follows") ? 1 : 0;
    if (!into) num_splits = static_cast<int>(attributes.Integer("num_splits"));
  }
};

// The tensors of one call, in the form of hc_submit. The tensors in `kept` must outlive the operation.
struct Tensors {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<hc_tensor> inputs, outputs;
  std::vector<OwnedTensor> kept;
};

hc_tensor Describe(const OwnedTensor& tensor, int32_t dtype, const std::vector<int64_t>& shape) {
  return {Tf().TensorData(tensor.get()), dtype, static_cast<int32_t>(shape.size()), shape.data()};
}

void ReadInput(const Submit& self, int index, Call* call, Tensors* tensors) {
  OwnedTensor input = call->Input(index);
  if (!call->ok()) return;
  int32_t dtype = 0;
  if (!FromTensorflow(Tf().TensorType(input.get()), &dtype)) {
    call->status().Set(kUnimplemented, (self.name.empty() ? "an operation" : "'" + self.name + "'") + ", tensor " +
                                           std::to_string(index) + ": elements of TF_DataType " +
                                           std::to_string(Tf().TensorType(input.get())) + " cannot be sent.");
    return;
  }
  const std::vector<int64_t>& shape = tensors->shapes.emplace_back(ShapeOf(input));
  if (self.into) {
    input.reset();  // a reference besides TensorFlow's would prevent the forwarding
    bool in_place = false;
    OwnedTensor output = call->ForwardOrAllocate(index, 1 + index, shape, &in_place);
    if (!call->ok()) return;
    tensors->outputs.push_back(Describe(output, dtype, shape));
    if (in_place) tensors->inputs.push_back(tensors->outputs.back());
    tensors->kept.push_back(std::move(output));
    if (in_place) return;
    input = call->Input(index);
  }
  tensors->inputs.push_back(Describe(input, dtype, shape));
  tensors->kept.push_back(std::move(input));
}

void* CreateSubmit(TF_OpKernelConstruction* construction) { return new Submit(Attributes(construction), false); }
void* CreateSubmitInto(TF_OpKernelConstruction* construction) { return new Submit(Attributes(construction), true); }
void DeleteSubmit(void* self) { delete static_cast<Submit*>(self); }

void ComputeSubmit(void* kernel, TF_OpKernelContext* context) {
  const Submit& self = *static_cast<Submit*>(kernel);
  Call call(context);
  const Bridge::Use use(Bridge::Get());
  if (!use) {
    call.status().Set(kFailedPrecondition, kNotRunning);
    return;
  }
  Flights::Get().Reap(use);
  const int count = call.num_inputs() - self.num_splits;
  Tensors tensors;
  tensors.shapes.reserve(static_cast<size_t>(count));  // the hc_tensors point into it, so it must not reallocate
  for (int i = 0; i < count && call.ok(); ++i) ReadInput(self, i, &call, &tensors);
  OwnedTensor splits;
  if (call.ok() && self.num_splits > 0) splits = call.Input(count);
  if (!call.ok()) return;
  hc_request request = self.request;
  request.num_tensors = count;
  request.inputs = tensors.inputs.data();
  request.outputs = self.into ? tensors.outputs.data() : nullptr;
  if (splits != nullptr) {
    request.splits = static_cast<const int64_t*>(Tf().TensorData(splits.get()));
    request.num_splits = static_cast<int32_t>(Tf().TensorByteSize(splits.get()) / sizeof(int64_t));
  }
  auto flight = std::make_unique<Flight>();
  hc_error error;
  const int code = use.api().submit(use.runtime(), &request, &flight->handle, &error);
  if (code != HC_OK) {
    call.status().Set(code, error);
    return;
  }
  flight->session = use.session();
  flight->kept = std::move(tensors.kept);
  call.SetOutput(0, Flights::Get().Add(std::move(flight)));
}

}  // namespace

const KernelFunctions kSubmit = {&CreateSubmit, &ComputeSubmit, &DeleteSubmit};
const KernelFunctions kSubmitInto = {&CreateSubmitInto, &ComputeSubmit, &DeleteSubmit};

}  // namespace horocache::tensorflow
