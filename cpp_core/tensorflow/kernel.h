// What all kernels need of a call and of their attributes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "capi/hc.h"
#include "tensorflow/flights.h"
#include "tensorflow/tf_api.h"

namespace horocache::tensorflow {

class TfStatus {
 public:
  TfStatus() : status_(Tf().NewStatus()) {}
  ~TfStatus() { Tf().DeleteStatus(status_); }
  TfStatus(const TfStatus&) = delete;
  TfStatus& operator=(const TfStatus&) = delete;

  TF_Status* get() const { return status_; }
  bool ok() const { return Tf().GetCode(status_) == kOk; }
  void Set(Code code, const std::string& message) { Tf().SetStatus(status_, code, message.c_str()); }
  // What TensorFlow calls a hc_status.
  void Set(int hc_code, const hc_error& error);

 private:
  TF_Status* status_;
};

// The attributes of a node; after an error the rest is not read.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}
  std::string Text(const char* name);
  double Number(const char* name);  // as text, for TensorFlow's floats have 32 bits
  int64_t Integer(const char* name);
  bool Flag(const char* name);
  // Reports the first error to TensorFlow.
  ~Attributes();

 private:
  TF_OpKernelConstruction* const construction_;
  TfStatus status_;
};

// One call of a kernel. The first error ends it, and stays: TensorFlow's functions set a status to success, too.
class Call {
 public:
  explicit Call(TF_OpKernelContext* context) : context_(context) {}
  // Reports the first error to TensorFlow.
  ~Call();

  bool ok() const { return status_.ok(); }
  bool interrupted() const { return Tf().GetCode(status_.get()) == kCancelled; }
  TfStatus& status() { return status_; }
  int num_inputs() const { return Tf().NumInputs(context_); }
  OwnedTensor Input(int index);
  void SetOutput(int index, const OwnedTensor& tensor);
  OwnedTensor Allocate(int index, int type, const std::vector<int64_t>& shape, size_t bytes);
  // The memory of the input of that index where nobody else uses it, else new memory; `taken` tells.
  OwnedTensor ForwardOrAllocate(int input, int output, const std::vector<int64_t>& shape, bool* taken);

 private:
  // Takes over what a function of TensorFlow has said.
  void Keep();

  TF_OpKernelContext* const context_;
  TfStatus status_;
  TfStatus last_;  // of the last function of TensorFlow
};

std::vector<int64_t> ShapeOf(const OwnedTensor& tensor);
// False for types that no backend handles.
bool FromTensorflow(int type, int32_t* dtype);
int ToTensorflow(int32_t dtype);

}  // namespace horocache::tensorflow
