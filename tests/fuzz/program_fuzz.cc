// Decodes the bytes that libFuzzer generates, and runs each decoded program as far as it goes without other ranks. A
// program may touch only its own memory. `make fuzz` builds and runs the fuzzer.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "program/execution.h"
#include "program/library.h"
#include "program/program.h"

namespace horocache::program {
namespace {

constexpr int64_t kSlotBytes = 4096;

// Accepts every message and delivers messages that no rank has sent.
class Void final : public Connections {
 public:
  std::byte* Claim(int) override { return slot_.data(); }
  void Push(int, int64_t) override {}
  const std::byte* Peek(int, int64_t) override { return slot_.data(); }
  void Pop(int) override {}

 private:
  std::vector<std::byte> slot_ = std::vector<std::byte>(kSlotBytes);
};

void AddUp(const data::FoldCall& call) {
  for (int64_t i = 0; i < call.count; ++i) {
    const std::byte sum{
        static_cast<uint8_t>(static_cast<int>(call.inputs[0][i]) + static_cast<int>(call.inputs[1][i]))};
    if (call.output != nullptr) call.output[i] = sum;
    if (call.second != nullptr) call.second[i] = sum;
  }
}

void Run(const Program& program, int rank, int64_t elements) {
  const RankProgram& mine = program.programs[static_cast<size_t>(rank)];
  const Sizes sizes(elements, 1, program.classes, program.refinement, program.uniform);
  if (!sizes.fits()) return;  // the built-in algorithm would run instead
  std::vector<std::vector<std::byte>> memory;
  if (program.most_count > kSlotBytes) return;  // its messages do not fit, see link_plan.cc
  const int64_t tile = TileElements(program, sizes, kSlotBytes);
  if (TilesOf(sizes, tile) > 16) return;
  RunSite site{&program, rank, sizes, AddUp, {}, nullptr, tile};
  for (size_t buffer = 0; buffer < mine.extents.size(); ++buffer) {
    const int64_t bytes = BufferBytes(mine, static_cast<int>(buffer), sizes);
    if (bytes > 1 << 20) return;
    memory.emplace_back(static_cast<size_t>(bytes));
    site.buffers.push_back(memory.back().data());
  }
  Void connections;
  site.connections = &connections;
  Execution run(site);
  for (int turn = 0; turn < 8; ++turn) {
    int64_t budget = 1 << 16;
    if (!run.Advance(&budget)) break;
  }
}

void RunRanks(const Program& program) {
  for (int rank = 0; rank < std::min(program.ranks, 4); ++rank) Run(program, rank, 100);
}

}  // namespace
}  // namespace horocache::program

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace horocache::program;
  const std::span<const std::byte> input{reinterpret_cast<const std::byte*>(bytes), size};
  if (const auto program = DecodeProgram(input); program.ok()) RunRanks(*program);
  const auto library = DecodeLibrary(input);
  if (!library.ok() || *library == nullptr) return 0;
  for (const LibraryProgram& one : (*library)->programs) RunRanks(one.program);
  return 0;
}
