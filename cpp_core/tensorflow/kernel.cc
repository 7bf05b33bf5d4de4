#include "tensorflow/kernel.h"

#include <array>
#include <cstdlib>

namespace horocache::tensorflow {
namespace {

// The TF_DataType of each DType, in the order of DType.
constexpr std::array<int, kNumDTypes> kTypes = {4, 6, 5, 3, 9, 19, 14, 1, 2, 8, 18, 10, 17, 22, 23};

// The TF_Code of each hc_status, in the order of hc_status.
constexpr std::array kCodes = {
    kOk,                  // HC_OK
    kInvalidArgument,     // HC_INVALID_ARGUMENT
    kFailedPrecondition,  // HC_NOT_INITIALIZED
    kUnimplemented,       // HC_UNSUPPORTED
    kFailedPrecondition,  // HC_MISMATCH
    kInvalidArgument,     // HC_DUPLICATE_NAME
    kDeadlineExceeded,    // HC_STALL
    kUnknown,             // HC_PEER_LOST: TensorFlow gives "unavailable" a meaning of its own
    kAborted,             // HC_SHUT_DOWN
    kAborted,             // HC_FORKED
    kResourceExhausted,   // HC_OUT_OF_MEMORY
    kFailedPrecondition,  // HC_VERSION_SKEW
    kFailedPrecondition,  // HC_STARTUP
    kAborted,             // HC_ABORTED
    kInternal,            // HC_CORRUPT
    kInternal,            // HC_INTERNAL
    kInvalidArgument,     // HC_NON_FINITE
    kAborted,             // HC_INPUT_FAILED
};
static_assert(kCodes.size() == HC_INPUT_FAILED + 1);

}  // namespace

void TfStatus::Set(int hc_code, const hc_error& error) {
  Tf().SetStatus(status_, kCodes.at(static_cast<size_t>(hc_code)), error.text);
}

Attributes::~Attributes() {
  if (!status_.ok()) Tf().OpKernelConstruction_Failure(construction_, status_.get());
}

std::string Attributes::Text(const char* name) {
  int32_t list_size = 0;
  int32_t bytes = 0;
  if (status_.ok()) Tf().OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &bytes, status_.get());
  if (!status_.ok()) return {};
  std::string text(static_cast<size_t>(bytes), '\0');
  Tf().OpKernelConstruction_GetAttrString(construction_, name, text.data(), text.size(), status_.get());
  return text;
}

double Attributes::Number(const char* name) {
  const std::string text = Text(name);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (status_.ok() && (text.empty() || *end != '\0'))
    status_.Set(kInvalidArgument, std::string(name) + " must be a number; it is '" + text + "'");
  return number;
}

int64_t Attributes::Integer(const char* name) {
  int64_t number = 0;
  if (status_.ok()) Tf().OpKernelConstruction_GetAttrInt64(construction_, name, &number, status_.get());
  return number;
}

bool Attributes::Flag(const char* name) {
  unsigned char flag = 0;
  if (status_.ok()) Tf().OpKernelConstruction_GetAttrBool(construction_, name, &flag, status_.get());
  return flag != 0;
}

Call::~Call() {
  if (!status_.ok()) Tf().OpKernelContext_Failure(context_, status_.get());
}

void Call::Keep() {
  if (status_.ok() && !last_.ok()) Tf().SetStatus(status_.get(), Tf().GetCode(last_.get()), Tf().Message(last_.get()));
}

OwnedTensor Call::Input(int index) {
  TF_Tensor* tensor = nullptr;
  Tf().GetInput(context_, index, &tensor, last_.get());
  Keep();
  return OwnedTensor(tensor);
}

void Call::SetOutput(int index, const OwnedTensor& tensor) {
  Tf().SetOutput(context_, index, tensor.get(), last_.get());
  Keep();
}

OwnedTensor Call::Allocate(int index, int type, const std::vector<int64_t>& shape, size_t bytes) {
  OwnedTensor tensor(
      Tf().AllocateOutput(context_, index, type, shape.data(), static_cast<int>(shape.size()), bytes, last_.get()));
  Keep();
  return tensor;
}

OwnedTensor Call::ForwardOrAllocate(int input, int output, const std::vector<int64_t>& shape, bool* taken) {
  int from = -1;
  OwnedTensor tensor(Tf().ForwardInputOrAllocateOutput(context_, &input, 1, output, shape.data(),
                                                       static_cast<int>(shape.size()), &from, last_.get()));
  Keep();
  *taken = from == input;
  return tensor;
}

std::vector<int64_t> ShapeOf(const OwnedTensor& tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(Tf().NumDims(tensor.get())));
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = Tf().Dim(tensor.get(), static_cast<int>(i));
  return shape;
}

bool FromTensorflow(int type, int32_t* dtype) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] != type) continue;
    *dtype = static_cast<int32_t>(i);
    return true;
  }
  return false;
}

int ToTensorflow(int32_t dtype) { return kTypes.at(static_cast<size_t>(dtype)); }

}  // namespace horocache::tensorflow
