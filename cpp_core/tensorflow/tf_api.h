// The part of TensorFlow's C interface that the operations use, found at run time.
//
// The build includes no header of TensorFlow and links none of its libraries, so one build serves every version that
// has these functions. Their signatures are those of tensorflow/c/{kernels,ops,tf_tensor,tf_status}.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace horocache::tensorflow {

// TF_Code.
enum Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
};

// TF_DataType.
enum Type : int { kInt32 = 3, kInt64 = 9 };

using Create = void* (*)(TF_OpKernelConstruction*);
using Compute = void (*)(void*, TF_OpKernelContext*);
using Delete = void (*)(void*);
using InferShape = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Deallocate = void (*)(void* data, size_t bytes, void* argument);

// return type, name without TF_, parameters
#define HC_TF_FUNCTIONS(X)                                                                                            \
  X(TF_Status*, NewStatus, (void))                                                                                    \
  X(void, DeleteStatus, (TF_Status*))                                                                                 \
  X(void, SetStatus, (TF_Status*, int code, const char* message))                                                     \
  X(int, GetCode, (const TF_Status*))                                                                                 \
  X(const char*, Message, (const TF_Status*))                                                                         \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char* name))                                              \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                                \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char* spec))                                    \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char* spec))                                   \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char* spec))                                  \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                          \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, InferShape))                        \
  X(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                             \
  X(TF_ShapeHandle*, NewShapeHandle, (void))                                                                          \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                       \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                        \
  X(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))               \
  X(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))              \
  X(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                              \
  X(TF_KernelBuilder*, NewKernelBuilder, (const char* op, const char* device, Create, Compute, Delete))               \
  X(void, RegisterKernelBuilder, (const char* kernel, TF_KernelBuilder*, TF_Status*))                                 \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                       \
  X(void, OpKernelConstruction_GetAttrSize,                                                                           \
    (TF_OpKernelConstruction*, const char* name, int32_t* list_size, int32_t* total_size, TF_Status*))                \
  X(void, OpKernelConstruction_GetAttrString,                                                                         \
    (TF_OpKernelConstruction*, const char* name, char* value, size_t max_length, TF_Status*))                         \
  X(void, OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char* name, int64_t*, TF_Status*))      \
  X(void, OpKernelConstruction_GetAttrBool, (TF_OpKernelConstruction*, const char* name, unsigned char*, TF_Status*)) \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                                 \
  X(int, NumInputs, (TF_OpKernelContext*))                                                                            \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                              \
  X(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                        \
  X(TF_Tensor*, AllocateOutput,                                                                                       \
    (TF_OpKernelContext*, int, int type, const int64_t* shape, int ndim, size_t bytes, TF_Status*))                   \
  X(TF_Tensor*, ForwardInputOrAllocateOutput,                                                                         \
    (TF_OpKernelContext*, const int* candidates, int count, int output, const int64_t* shape, int ndim, int* taken,   \
     TF_Status*))                                                                                                     \
  X(TF_Tensor*, NewTensor,                                                                                            \
    (int type, const int64_t* shape, int ndim, void* data, size_t bytes, Deallocate, void* argument))                 \
  X(void, DeleteTensor, (TF_Tensor*))                                                                                 \
  X(int, TensorType, (const TF_Tensor*))                                                                              \
  X(int, NumDims, (const TF_Tensor*))                                                                                 \
  X(int64_t, Dim, (const TF_Tensor*, int))                                                                            \
  X(size_t, TensorByteSize, (const TF_Tensor*))                                                                       \
  X(void*, TensorData, (const TF_Tensor*))

struct TfApi {
#define HC_TF_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  HC_TF_FUNCTIONS(HC_TF_MEMBER)
#undef HC_TF_MEMBER
};

// Finds the functions in the TensorFlow that this process has loaded. Fails with kUnsupported if one is missing, and
// names it.
Status FindTensorflow();
// Returns the functions; all are null before FindTensorflow.
const TfApi& Tf();

}  // namespace horocache::tensorflow
