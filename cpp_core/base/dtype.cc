#include "base/dtype.h"

#include <array>

namespace horocache {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
  int dlpack_code;
  int bits;
};

constexpr std::array<Row, kNumDTypes> kTable = {{
#define HC_ROW(id, name, bytes, code, bits) Row{DType::id, name, bytes, code, bits},
    HC_DTYPES(HC_ROW)
#undef HC_ROW
}};

const Row& RowOf(DType dtype) { return kTable.at(static_cast<size_t>(dtype)); }

}  // namespace

size_t DTypeBytes(DType dtype) { return RowOf(dtype).bytes; }
std::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> DTypeFromDlpack(int code, int bits, int lanes) {
  for (const Row& row : kTable) {
    if (row.dlpack_code == code && row.bits == bits && lanes == 1) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Row& row : kTable) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::pair<int, int> DTypeToDlpack(DType dtype) { return {RowOf(dtype).dlpack_code, RowOf(dtype).bits}; }

bool Is16BitFloat(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }

bool IsFloat(DType dtype) { return RowOf(dtype).dlpack_code == 2 || RowOf(dtype).dlpack_code == 4; }
bool IsComplex(DType dtype) { return RowOf(dtype).dlpack_code == 5; }
bool IsInteger(DType dtype) { return RowOf(dtype).dlpack_code <= 1; }

}  // namespace horocache
