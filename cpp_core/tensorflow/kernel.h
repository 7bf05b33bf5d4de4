// Helpers of all kernels: statuses, attributes and calls.
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
  // Sets the TensorFlow code that stands for a hc_status.
  void Set(int hc_code, const hc_error& error);

 private:
  TF_Status* status_;
};

// Reads the attributes of a node. After an error it does not read any further ones.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}
  std::string Text(const char* name);
  double Number(const char* name);  // from a text attribute, because TensorFlow's floats have 32 bits
  int64_t Integer(const char* name);
  bool Flag(const char* name);
  // Reports the first error to TensorFlow.
  ~Attributes();

 private:
  TF_OpKernelConstruction* const construction_;
  TfStatus status_;
};

// One call of a kernel. Keeps the first error in a status of its own, because each function of TensorFlow overwrites
// the status that it gets, also with success.
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
  // Returns the memory of an input if it has no other users (then *taken is true), else new memory.
  OwnedTensor ForwardOrAllocate(int input, int output, const std::vector<int64_t>& shape, bool* taken);

 private:
  // Copies the error of TensorFlow's last function, if it is the first error.
  void Keep();

  TF_OpKernelContext* const context_;
  TfStatus status_;
  TfStatus last_;  // of the last function of TensorFlow
};

std::vector<int64_t> ShapeOf(const OwnedTensor& tensor);
// Returns false for types that no backend supports.
bool FromTensorflow(int type, int32_t* dtype);
int ToTensorflow(int32_t dtype);

}  // namespace horocache::tensorflow
