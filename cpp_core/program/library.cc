#include "program/library.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "control/hashing.h"
#include "program/word_reader.h"

namespace horocache::program {
namespace {

constexpr int64_t kLibraryMagic = 0x31464c5250434348;  // "HCCPRLF1"
constexpr int64_t kMostText = 1 << 20;

std::string TakeText(Words* in, const char* what) {
  const std::span<const std::byte> bytes = in->TakeBytes(kMostText, what);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool Runs(wire::Op op) { return op <= wire::Op::kScatter; }

template <typename F>
bool AnyStep(const Program& program, F&& f) {
  return std::ranges::any_of(program.programs,
                             [&](const RankProgram& rank) { return std::ranges::any_of(rank.steps, f); });
}

bool WritesInput(const Program& program) {
  return !program.in_place && AnyStep(program, [](const Step& step) { return step.destination.buffer == kInput; });
}

// Fails unless the input and output of every rank have the sizes that the operation gives them: the sizes in a packed
// program are not trusted.
Status CheckExtents(const LibraryProgram& one) {
  const int64_t unit = int64_t{one.program.classes} * one.program.refinement;
  for (int rank = 0; rank < one.program.ranks; ++rank) {
    const Places places = PlacesOf(one.op, one.program.ranks, rank, one.root);
    const Joined joined = JoinedOf(one, rank);
    int64_t wanted[2] = {places.input * unit, places.output * unit};
    if (joined.joined) wanted[1 - joined.buffer] = 0;
    const std::vector<int64_t>& extents = one.program.programs[static_cast<size_t>(rank)].extents;
    if (extents.size() >= 2 && extents[kInput] == wanted[kInput] && extents[kOutput] == wanted[kOutput]) continue;
    return {StatusCode::kCorrupt, "program '" + one.name + "' has other buffers on rank " + std::to_string(rank) +
                                      " than " + std::string(wire::OpName(one.op)) + " has"};
  }
  return Status::Ok();
}

Status Complete(LibraryProgram* one, std::span<const std::byte> packed) {
  StatusOr<Program> program = DecodeProgram(packed);
  if (!program.ok()) return {StatusCode::kCorrupt, "program '" + one->name + "': " + program.status().message()};
  one->program = std::move(*program);
  if (one->root >= one->program.ranks || wire::HasRoot(one->op) != (one->root >= 0)) {
    return {StatusCode::kCorrupt, "program '" + one->name + "' has the root " + std::to_string(one->root)};
  }
  HC_RETURN_IF_ERROR(CheckExtents(*one));
  if (!wire::HasReduceOp(one->op) && AnyStep(one->program, [](const Step& step) { return Reduces(step.op); })) {
    return {StatusCode::kCorrupt,
            "program '" + one->name + "' adds up, and " + std::string(wire::OpName(one->op)) + " has no sum"};
  }
  one->wirings = WireUp(one->program);
  one->writes_input = WritesInput(one->program);
  return Status::Ok();
}

}  // namespace

std::string Library::Summary() const {
  std::string names;
  for (const LibraryProgram& one : programs) names += one.name + ", ";
  return names + std::to_string(hash);
}

StatusOr<std::shared_ptr<const Library>> DecodeLibrary(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::shared_ptr<const Library>();
  auto library = std::make_shared<Library>();
  Words in(bytes);
  in.Take(kLibraryMagic, kLibraryMagic, "the first word");
  library->rules = TakeText(&in, "the length of the rules");
  const int64_t count = in.Count(kMostPrograms, 8, "the number of programs");
  for (int64_t i = 0; i < count && in.ok(); ++i) {
    LibraryProgram one;
    one.name = TakeText(&in, "the length of a name");
    in.At("program '" + one.name + "': ");
    one.op = in.TakeAs<wire::Op>(0, wire::kNumOps - 1, "the operation");
    if (!Runs(one.op)) in.Fail("the operation has no programs");
    one.root = in.TakeAs<int>(-1, kMaxProgramRanks, "the root");
    one.required = in.Take(0, 1, "whether it is required") != 0;
    one.in_rank_order = in.Take(0, 1, "the order of sums") != 0;
    one.protocol = in.TakeAs<Protocol>(0, kNumProtocols - 1, "the protocol");
    one.slots = in.TakeAs<int>(0, 8, "the number of slots");
    one.tile_bytes = in.Take(0, int64_t{1} << 30, "the bytes of a tile");
    one.min_bytes = in.Take(0, INT64_MAX, "the least size");
    one.max_bytes = in.Take(0, INT64_MAX, "the greatest size");
    const std::span<const std::byte> packed = in.TakeBytes(INT64_MAX / 2, "the length of the program");
    if (!in.ok()) break;
    HC_RETURN_IF_ERROR(Complete(&one, packed));
    library->programs.push_back(std::move(one));
  }
  if (in.ok() && !in.at_end()) in.Fail("there is more behind the last program");
  if (!in.ok()) return Status(StatusCode::kCorrupt, "the job's programs cannot be read: " + in.error());
  control::Hasher hash;
  hash.Add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  library->hash = hash.value();
  return std::shared_ptr<const Library>(std::move(library));
}

Places PlacesOf(wire::Op op, int ranks, int rank, int root) {
  switch (op) {
    case wire::Op::kAllgather:
      return {1, ranks};
    case wire::Op::kReducescatter:
      return {ranks, 1};
    case wire::Op::kAlltoall:
      return {ranks, ranks};
    case wire::Op::kGather:
      return {1, rank == root ? ranks : 0};
    case wire::Op::kScatter:
      return {rank == root ? ranks : 0, 1};
    default:
      return {1, 1};
  }
}

Joined JoinedOf(const LibraryProgram& program, int rank) {
  const Places places = PlacesOf(program.op, program.program.ranks, rank, program.root);
  if (!program.program.in_place || places.input == 0 || places.output == 0) return {};
  switch (program.op) {
    case wire::Op::kAllgather:
    case wire::Op::kGather:
      return {true, kOutput, rank, 0};
    case wire::Op::kReducescatter:
    case wire::Op::kScatter:
      return {true, kInput, 0, rank};
    default:
      return {true, kInput, 0, 0};
  }
}

}  // namespace horocache::program
