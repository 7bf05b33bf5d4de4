// One operation of the program backend, and the state that the operations of a lane share.
//
// Note [Programs and the built-in algorithm]
// All ranks decide alike whether an operation runs as a program, because they decide from common knowledge: the
// operation, its sizes, the joined ranks. Where sizes differ by rank, the ranks first exchange them in a short
// allgather of the built-in backend. All other operations, and those for which any rank needs something unusual, run on
// the built-in backend. It has its own memory, so programs and the built-in backend count their operations separately,
// and the counts agree on all ranks.
//
// Threads: the driving thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/backends/queued_task.h"
#include "program/backend.h"
#include "program/execution.h"
#include "program/links.h"
#include "program/scratch.h"

namespace horocache::program {

struct ProgramQueue final : data::TaskQueue {
  ProgramQueue(ProgramResources given, int rank, int size, std::unique_ptr<Links> links)
      : rank(rank), size(size), resources(std::move(given)), links(std::move(links)) {}

  const int rank, size;
  ProgramResources resources;
  const std::unique_ptr<Links> links;
  // Buffers of the running operation: its input and output where it cannot use the user's memory, and scratch.
  WorkBuffer input{&resources.memory}, output{&resources.memory}, scratch{&resources.memory};
  std::set<std::string> logged;  // reasons that were logged; each is logged once

 private:
  void OnDriven() override { links->Ring(); }
  void OnBroken() override { links->Abandon(); }
};

class ProgramTask final : public data::QueuedTask {
 public:
  ProgramTask(ProgramQueue* queue, data::Collective collective);
  ~ProgramTask() override;

  observe::Phase phase() const override;
  bool must_poll() const override;
  void AddWaitingFor(std::vector<int>* ranks) const override;
  std::string Details() const override;

 private:
  enum class State { kBegin, kCompare, kConfirm, kBuiltIn, kWait, kLoad, kRun, kStore, kDone };
  // A rank's contribution to the exchange of sizes.
  struct Facts {
    int64_t elements = 0;  // per place of its input, 0: no input. In kConfirm: result bytes it cannot allocate, or 0
    int64_t detail = 0;    // hash of the values that must agree; kUnusual: no program supports the rank's arguments
  };
  static constexpr int64_t kUnusual = -1;
  // A copy between the user's memory and the program's, with scaling and conversion to or from float32 if needed.
  struct Move {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t elements = 0;
    data::Scaling scaling;
    bool loads = false;  // true if it copies to the program's memory
  };

  bool Step(int64_t* budget) override;
  bool Finished() const override { return state_ == State::kDone; }

  bool Begin();
  bool EndInner();
  // Returns the program to run, or null with the reason in `why`.
  const LibraryProgram* Choose(int64_t bytes, std::string* why) const;
  std::string Misfit(const LibraryProgram& one) const;
  std::string NotFor(const LibraryProgram& one, int64_t bytes) const;
  bool Even(int64_t rows) const;
  Facts OwnFacts() const;
  // Starts an allgather of `facts` into facts_ and enters state `next`, which lasts until it is complete.
  bool Exchange(const Facts& facts, State next);
  bool Agree();
  int64_t AllocateResult();
  bool Confirm();
  bool UseBuiltIn(const std::string& why);
  bool EndBuiltIn();
  bool EndWith(Status status);

  // Plans the run with `elements` elements per place (see Sizes). Returns false, with the reason in `why`, if the
  // program cannot run. Equal on all ranks.
  bool Plan(int64_t elements, std::string* why);
  // Assigns memory to the program's buffers and begins the operation on the links.
  bool Place();
  Status PlaceBuffers();
  Status PlaceJoined(const Joined& joined, int64_t bytes, std::byte** loaded, std::byte** finished);
  Status PlaceApart(int64_t bytes, std::byte** loaded, std::byte** finished);
  Status PlacePrivately(WorkBuffer* buffer, int64_t bytes, std::byte** place);
  Status PlaceScratch(const RankProgram& mine);
  void PlanMoves(std::byte* loaded, std::byte* finished, int64_t result_elements);
  bool StartRun();
  // Continues the copies; true when all are done.
  bool Moved(const std::vector<Move>& moves, int64_t* budget);
  void MoveNow(const Move& move, int64_t at, int64_t count, int64_t* budget);
  void ScaleNow(const std::byte* from, std::byte* to, int64_t count, const data::Scaling& scaling) const;
  bool Run(int64_t* budget);
  bool folds() const;

  ProgramQueue& queue_;
  State state_ = State::kBegin;
  const LibraryProgram* program_ = nullptr;
  int64_t total_ = 0;  // elements of all segments
  std::unique_ptr<data::CollectiveTask> inner_;

  Facts own_;
  std::vector<Facts> facts_;  // by rank
  data::VariableOutput received_;
  int64_t elements_ = 0;  // per place, for an operation with rows

  LinkPlan plan_;
  // Note [16-bit floats]
  // Programs fold float16 and bfloat16 in float32, like the built-in backend: the inputs are widened before the program
  // runs, and the result is rounded once.
  bool widened_ = false;
  int64_t run_bytes_ = 0;  // bytes per element while the program runs
  std::optional<RunSite> site_;
  std::byte* result_ = nullptr;  // the user's memory for the result, if it is in one piece
  std::unique_ptr<Execution> run_;
  std::vector<Move> loads_, stores_;
  size_t move_ = 0;    // index of the current copy
  int64_t moved_ = 0;  // elements of it that are done
};

}  // namespace horocache::program
