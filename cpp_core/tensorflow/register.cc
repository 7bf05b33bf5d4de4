// Registers the operations and their kernels when TensorFlow loads this library.
//
// All operations are stateful, so that TensorFlow does not prune them, merge equal ones or compute them in advance. No
// name contains "Enqueue", because TensorFlow's optimizers would take it for an operation of TensorFlow's queues.
#include <string>
#include <vector>

#include "tensorflow/bridge.h"
#include "tensorflow/flights.h"
#include "tensorflow/interrupt.h"
#include "tensorflow/kernel.h"
#include "tensorflow/kernels.h"

namespace horocache::tensorflow {
namespace {

using Specs = std::vector<const char*>;

struct OpDefinition {
  const char* name;
  Specs attributes, inputs, outputs;
  InferShape infer_shape;
  const KernelFunctions& kernel;
};

// Attributes of a request, which the ranks compare; see hc_request.
const Specs kRequest = {"tensor_name: string",       "op: int",
                        "reduce_op: int = 1",        "root: int = -1",
                        "prescale: string",          "postscale: string",
                        "process_set: int",          "layers: string = ''",
                        "backend: string = ''",      "group: bool = false",
                        "wait_follows: bool = false"};
const Specs kWaiting = {"alone: bool = false"};

Specs With(Specs specs, const Specs& more) {
  specs.insert(specs.end(), more.begin(), more.end());
  return specs;
}

void InferUnknown(TF_ShapeInferenceContext* context, TF_Status* status) {
  Tf().ShapeInferenceContextSetUnknownShape(context, status);
}

void InferScalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const scalar = Tf().ShapeInferenceContextScalar(context);
  Tf().ShapeInferenceContextSetOutput(context, 0, scalar, status);
  Tf().DeleteShapeHandle(scalar);
}

// The outputs are a scalar, then tensors with the shapes of the inputs.
void InferSubmitInto(TF_ShapeInferenceContext* context, TF_Status* status) {
  InferScalar(context, status);
  TF_ShapeHandle* const shape = Tf().NewShapeHandle();
  const auto count = static_cast<int>(Tf().ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && Tf().GetCode(status) == kOk; ++i) {
    Tf().ShapeInferenceContextGetInput(context, i, shape, status);
    if (Tf().GetCode(status) == kOk) Tf().ShapeInferenceContextSetOutput(context, 1 + i, shape, status);
  }
  Tf().DeleteShapeHandle(shape);
}

const std::vector<OpDefinition>& Definitions() {
  static const std::vector<OpDefinition> definitions = {
      {"HorocacheSubmit",
       With(kRequest, {"T: list(type) >= 0", "num_splits: int >= 0"}),
       {"tensors: T", "splits: num_splits * int64"},
       {"handle: int64"},
       &InferScalar,
       kSubmit},
      {"HorocacheSubmitInto",
       With(kRequest, {"T: list(type) >= 1"}),
       {"tensors: T"},
       {"handle: int64", "results: T"},
       &InferSubmitInto,
       kSubmitInto},
      {"HorocacheWait",
       With(kWaiting, {"num_handles: int >= 1", "T: list(type) >= 0"}),
       {"handles: num_handles * int64", "tensors: T"},
       {"results: T"},
       &InferUnknown,
       kWait},
      {"HorocacheWaitResults",
       // The attributes of the enqueued request, for the gradient.
       With(With(kWaiting, kRequest), {"T: list(type) >= 1", "num_received: int >= 1"}),
       {"handle: int64", "tensors: T"},
       {"results: T", "received: num_received * int32", "divisor: int32"},
       &InferUnknown,
       kWaitResults},
      {"HorocacheWaitJoin", kWaiting, {"handle: int64"}, {"last: int32"}, &InferScalar, kWaitJoin},
      {"HorocacheCountStep", {}, {}, {}, &InferUnknown, kCountStep},
      {"HorocachePlace", {"property: int", "process_set: int = 0"}, {}, {"value: int32"}, &InferScalar, kPlace},
  };
  return definitions;
}

Status RegisterOne(const OpDefinition& definition) {
  TF_OpDefinitionBuilder* const builder = Tf().NewOpDefinitionBuilder(definition.name);
  for (const char* spec : definition.attributes) Tf().OpDefinitionBuilderAddAttr(builder, spec);
  for (const char* spec : definition.inputs) Tf().OpDefinitionBuilderAddInput(builder, spec);
  for (const char* spec : definition.outputs) Tf().OpDefinitionBuilderAddOutput(builder, spec);
  Tf().OpDefinitionBuilderSetIsStateful(builder, true);
  Tf().OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.infer_shape);
  TfStatus status;
  Tf().RegisterOpDefinition(builder, status.get());
  if (status.ok()) {
    const KernelFunctions& kernel = definition.kernel;
    TF_KernelBuilder* const made =
        Tf().NewKernelBuilder(definition.name, "CPU", kernel.create, kernel.compute, kernel.destroy);
    Tf().RegisterKernelBuilder(definition.name, made, status.get());
  }
  if (status.ok()) return Status::Ok();
  return UnsupportedError(std::string(definition.name) + ": " + Tf().Message(status.get()));
}

Status RegisterAll() {
  HC_RETURN_IF_ERROR(FindTensorflow());
  for (const OpDefinition& definition : Definitions()) HC_RETURN_IF_ERROR(RegisterOne(definition));
  return Status::Ok();
}

// Runs while TensorFlow loads the library, so that TensorFlow assigns the operations to it.
const Status g_registered = RegisterAll();

}  // namespace
}  // namespace horocache::tensorflow

using horocache::tensorflow::Bridge;
using horocache::tensorflow::Flights;

extern "C" {

// Returns why the operations could not be registered; empty if they are registered.
HC_API const char* hc_tf_problem(void) { return horocache::tensorflow::g_registered.message().c_str(); }

HC_API void hc_tf_attach(const hc_api* api, hc_runtime* runtime) { Bridge::Get().Attach(api, runtime); }

// `running`: nonzero if pending operations run on until the process ends; zero if the runtime has been stopped.
HC_API void hc_tf_detach(int running) {
  Bridge::Get().Detach();
  if (running != 0) {
    Flights::Get().KeepAll();
  } else {
    Flights::Get().Clear();
  }
}

// Raises the exception of a signal handler that ended a wait, if there is one. Requires the GIL.
HC_API void hc_tf_raise_interrupt(void) { horocache::tensorflow::RaiseInterrupt(); }

HC_API void hc_tf_forked_child(void) {
  Bridge::Get().ForkedChild();
  Flights::Get().KeepAll();
}
}
