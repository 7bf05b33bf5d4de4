// Modules of PTX text: the names of their entries and the sizes of the parameters. The kernels themselves are in
// kernels.cc.
#include <cctype>
#include <cstring>
#include <set>

#include "driver/driver.h"
#include "driver/options.h"

namespace fake_gpu {
namespace {

constexpr int kTarget = 90;          // compute capability of the device
constexpr int kLargestBlock = 1024;  // threads
constexpr size_t kSharedMemory = 227 << 10;

// The instructions of the kernels that the fake may see; others are taken for mistakes.
const std::set<std::string, std::less<>>& Instructions() {
  static const auto* const instructions = new std::set<std::string, std::less<>>{
      "add", "and",  "bra",  "cvt", "div", "ld", "mad", "max",  "min", "mov", "mul",  "neg", "or",     "rem",
      "ret", "selp", "setp", "shl", "shr", "st", "sub", "trap", "xor", "bar", "atom", "red", "membar", "not"};
  return *instructions;
}

std::string WithoutComments(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "//") {
      while (i < text.size() && text[i] != '\n') ++i;
    }
    if (i < text.size()) plain += text[i];
  }
  return plain;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// The number behind a directive such as ".version"; -1: there is none.
double NumberBehind(std::string_view text, std::string_view directive) {
  const size_t at = text.find(directive);
  if (at == std::string_view::npos) return -1;
  return std::strtod(std::string(text.substr(at + directive.size(), 20)).c_str(), nullptr);
}

// The statements of a body: each instruction must be known.
bool BodyIsRight(std::string_view body) {
  size_t begin = 0;
  while (begin < body.size()) {
    const size_t end = body.find(';', begin);
    if (end == std::string_view::npos) return Trimmed(body.substr(begin)).empty();
    std::string_view statement = Trimmed(body.substr(begin, end - begin));
    begin = end + 1;
    for (size_t colon = statement.find(':'); colon != std::string_view::npos; colon = statement.find(':'))
      statement = Trimmed(statement.substr(colon + 1));  // labels
    if (statement.starts_with(".reg")) continue;
    if (statement.starts_with("@")) statement = Trimmed(statement.substr(statement.find(' ')));
    const size_t length = statement.find_first_of(". \t\n");
    if (!Instructions().contains(statement.substr(0, length))) return false;
  }
  return true;
}

size_t SizeOf(std::string_view parameter) {
  for (const auto& [kind, size] :
       std::initializer_list<std::pair<std::string_view, size_t>>{{"64", 8}, {"32", 4}, {"16", 2}, {"8", 1}}) {
    const size_t at = parameter.find(" .");
    if (at != std::string_view::npos && parameter.find(kind, at) != std::string_view::npos) return size;
  }
  return 0;
}

// Reads the entries; false: the text is wrong.
bool ReadEntries(Device* device, std::string_view text, Module* module) {
  module->device = device;
  for (size_t at = text.find(".entry"); at != std::string_view::npos; at = text.find(".entry", at + 1)) {
    const size_t open = text.find('(', at);
    const size_t close = text.find(')', at);
    const size_t body = text.find('{', at);
    if (open == std::string_view::npos || close == std::string_view::npos || body == std::string_view::npos)
      return false;
    auto entry = std::make_unique<Module::Entry>();
    entry->name = Trimmed(text.substr(at + 6, open - at - 6));
    std::string_view parameters = text.substr(open + 1, close - open - 1);
    for (size_t found = parameters.find(".param"); found != std::string_view::npos;
         found = parameters.find(".param", found + 1))
      entry->parameter_sizes.push_back(SizeOf(parameters.substr(found + 6, parameters.find(',', found) - found - 6)));
    int depth = 1;
    size_t end = body + 1;
    while (end < text.size() && depth > 0) {
      depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      ++end;
    }
    if (depth != 0 || !BodyIsRight(text.substr(body + 1, end - body - 2))) return false;
    std::string name = entry->name;
    module->entries[std::move(name)] = std::move(entry);
  }
  return true;
}

Code CheckHeader(std::string_view text) {
  const double version = NumberBehind(text, ".version");
  if (version < 0) return k_INVALID_IMAGE;
  // PTX 9.0 belongs to CUDA 13.0, 8.0 to 12.0, 7.0 to 11.0.
  if (version > options().version / 1000 - 4 + 0.99) return k_UNSUPPORTED_PTX_VERSION;
  return NumberBehind(text, ".target sm_") > kTarget ? k_INVALID_PTX : k_SUCCESS;
}

Code FindModule(const Lock&, const void* handle, Module** module) {
  const auto found = state().modules.find(handle);
  if (found == state().modules.end()) return k_INVALID_HANDLE;
  *module = found->second.get();
  return ContextError(*(*module)->device);
}

// The entry of a function's handle, and its module's device.
const Module::Entry* FindEntry(const Lock&, const void* handle, Device** device) {
  for (const auto& [name, module] : state().modules) {
    for (const auto& [entry_name, entry] : module->entries) {
      if (entry.get() != handle) continue;
      *device = module->device;
      return entry.get();
    }
  }
  return nullptr;
}

}  // namespace

FAKE_GPU_API Code cuModuleLoadData(void** result, const void* image) {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  if (image == nullptr) return k_INVALID_VALUE;
  const std::string text = WithoutComments(static_cast<const char*>(image));
  if (const Code wrong = CheckHeader(text)) return wrong;
  auto module = std::make_unique<Module>();
  if (!ReadEntries(device, text, module.get())) return k_INVALID_PTX;
  Lock lock(state().mutex);
  WaitForDevice(&lock, device);
  *result = module.get();
  state().modules[module.get()] = std::move(module);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuModuleUnload(void* handle) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  Lock lock(state().mutex);
  Module* module = nullptr;
  if (const Code wrong = FindModule(lock, handle, &module)) return wrong;
  WaitForDevice(&lock, module->device);
  state().modules.erase(handle);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuModuleGetFunction(void** function, void* handle, const char* name) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Module* module = nullptr;
  if (const Code wrong = FindModule(lock, handle, &module)) return wrong;
  const auto found = module->entries.find(name);
  if (found == module->entries.end()) return k_NOT_FOUND;
  if (!HasKernel(name)) BreakRule(std::string("the fake has no reference of the kernel ") + name);
  *function = found->second.get();
  return k_SUCCESS;
}

FAKE_GPU_API Code cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared_bytes, void* handle,
                                 void** arguments, void**) {
  if (const Code refused = Enter(__func__)) return refused;
  if (function == nullptr) return k_INVALID_HANDLE;
  Lock lock(state().mutex);
  Device* device = nullptr;
  const Module::Entry* const entry = FindEntry(lock, function, &device);
  if (entry == nullptr) {
    BreakRule("a kernel of a module that is not loaded is launched");
    return k_INVALID_HANDLE;
  }
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > kLargestBlock || grid_x > 0x7FFFFFFF ||
      grid_y > 0xFFFF || grid_z > 0xFFFF || shared_bytes > kSharedMemory)
    return k_INVALID_VALUE;
  if (arguments == nullptr && !entry->parameter_sizes.empty()) return k_INVALID_VALUE;
  Launch launch;
  launch.name = entry->name;
  for (size_t i = 0; i < entry->parameter_sizes.size(); ++i) {
    const auto* const value = static_cast<const std::byte*>(arguments[i]);
    launch.arguments.emplace_back(value, value + entry->parameter_sizes[i]);
  }
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  lock.unlock();
  const std::lock_guard context(device->context_lock);
  lock.lock();
  const Code queued = Enqueue(lock, stream, [device, launch] { return MakeKernel(device, launch); });
  Advance(&lock);
  return queued;
}

}  // namespace fake_gpu
