#include "tensorflow/tf_api.h"

#include <string>
#include <vector>

#include "base/dynlib.h"

namespace horocache::tensorflow {
namespace {

// One per process, like TensorFlow's registry.
TfApi g_api;

Status FindIn(const std::vector<DynamicLibrary>& libraries, const char* name, void** out) {
  for (const DynamicLibrary& library : libraries) {
    *out = library.Find(name);
    if (*out != nullptr) return Status::Ok();
  }
  return UnsupportedError(std::string("the TensorFlow of this process has no ") + name);
}

}  // namespace

Status FindTensorflow() {
  std::vector<DynamicLibrary> libraries;
  // The kernel functions are in the framework library; the location of the others depends on the release.
  for (const std::string& path : LoadedLibraries({"libtensorflow_framework.so", "libtensorflow_cc.so"})) {
    StatusOr<DynamicLibrary> library = DynamicLibrary::Open(path, false);
    HC_RETURN_IF_ERROR(library.status());
    libraries.push_back(*library);
  }
  if (libraries.empty()) return UnsupportedError("this process has not loaded TensorFlow's libtensorflow_framework.so");
  void* symbol = nullptr;
#define HC_TF_FIND(result, name, parameters)                   \
  HC_RETURN_IF_ERROR(FindIn(libraries, "TF_" #name, &symbol)); \
  g_api.name = reinterpret_cast<result(*) parameters>(symbol);
  HC_TF_FUNCTIONS(HC_TF_FIND)
#undef HC_TF_FIND
  return Status::Ok();
}

const TfApi& Tf() { return g_api; }

}  // namespace horocache::tensorflow
