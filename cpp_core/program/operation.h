// One operation of the program backend, and what the operations of a lane share.
//
// Note [Programs and the built-in algorithm]
// Whether an operation runs as a program follows from what all ranks know alike: the operation, its sizes, who has
// joined. Where sizes differ by rank, the ranks tell each other theirs first, in a short allgather of the built-in
// backend. All other operations, and those of which any rank wants something unusual, are the built-in's, with memory
// of its own; so both count their own operations, and all ranks count alike.
//
// Role: lanes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/backends/queued_operation.h"
#include "program/backend.h"
#include "program/execution.h"
#include "program/links.h"
#include "program/work_buffer.h"

namespace horocache::program {

struct ProgramQueue final : data::OperationQueue {
  ProgramQueue(ProgramMeans given, int rank, int size, std::unique_ptr<Links> links)
      : rank(rank), size(size), means(std::move(given)), links(std::move(links)) {}

  const int rank, size;
  ProgramMeans means;
  const std::unique_ptr<Links> links;
  // Of the operation that runs: its inputs and outputs where they are not the user's, and scratch.
  WorkBuffer input{&means.memory}, output{&means.memory}, scratch{&means.memory};
  std::set<std::string> told;  // reasons, each is told once

 private:
  void OnDriven() override { links->Ring(); }
  void OnBroken() override { links->Abandon(); }
};

class ProgramOperation final : public data::QueuedOperation {
 public:
  ProgramOperation(ProgramQueue* queue, data::Collective collective);
  ~ProgramOperation() override;

  observe::Phase phase() const override;
  bool must_poll() const override;
  void AddWaitingFor(std::vector<int>* ranks) const override;
  std::string Details() const override;

 private:
  enum class State { kBegin, kMeet, kConfirm, kBuiltIn, kWait, kLoad, kRun, kStore, kDone };
  // What a rank tells of itself where sizes differ.
  struct Facts {
    int64_t elements = 0;  // in one place of its input; 0: it has no say
    int64_t detail = 0;    // a hash of what must be equal; kUnusual: it wants what no program has
  };
  static constexpr int64_t kUnusual = -1;
  // Elements that are copied, and scaled or widened if they are to be.
  struct Move {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t elements = 0;
    data::Scaling scaling;
    bool loads = false;
  };

  bool Step(int64_t* budget) override;
  bool Finished() const override { return state_ == State::kDone; }

  bool Begin();
  bool EndInner();
  // Null if none fits; then `why` says why not.
  const LibraryProgram* Choose(int64_t bytes, std::string* why) const;
  std::string Misfit(const LibraryProgram& one) const;
  std::string NotFor(const LibraryProgram& one, int64_t bytes) const;
  bool Even(int64_t rows) const;
  Facts OwnFacts() const;
  // All ranks' facts_, before `next`.
  bool Tell(const Facts& facts, State next);
  bool Agree();
  int64_t AllocateResult();
  bool Confirm();
  bool UseBuiltIn(const std::string& why);
  bool EndBuiltIn();
  bool EndWith(Status status);

  // Whether and how the program runs with so many elements in one place, see Sizes. The same on all ranks.
  bool Plan(int64_t elements, std::string* why);
  // Finds memory for the buffers.
  bool Place();
  Status PlaceBuffers();
  Status PlaceJoined(const Joined& joined, int64_t bytes, std::byte** loaded, std::byte** finished);
  Status PlaceApart(int64_t bytes, std::byte** loaded, std::byte** finished);
  Status PlacePrivately(WorkBuffer* buffer, int64_t bytes, std::byte** place);
  Status PlaceScratch(const RankProgram& mine);
  void PlanMoves(std::byte* loaded, std::byte* finished, int64_t result_elements);
  bool StartRun();
  // True when all are done.
  bool Moved(const std::vector<Move>& moves, int64_t* budget);
  void MoveNow(const Move& move, int64_t at, int64_t count, int64_t* budget);
  void ScaleNow(const std::byte* from, std::byte* to, int64_t count, const data::Scaling& scaling) const;
  bool Run(int64_t* budget);
  bool folds() const;

  ProgramQueue& queue_;
  State state_ = State::kBegin;
  const LibraryProgram* program_ = nullptr;
  int64_t total_ = 0;  // elements of the segments
  std::unique_ptr<data::Operation> inner_;

  Facts own_;
  std::vector<Facts> facts_;  // by rank
  data::VariableOutput told_;
  int64_t elements_ = 0;  // in one place of an operation with rows

  LinkPlan plan_;
  // Note [16 bits]
  // Sums of float16 and bfloat16 are made in float32, as the built-in algorithm makes them: the inputs are widened
  // before the program runs, and its result is rounded once.
  bool widened_ = false;
  int64_t run_bytes_ = 0;  // of an element while the program runs
  std::optional<RunSite> site_;
  std::byte* result_ = nullptr;  // where the user wants it
  std::unique_ptr<Execution> run_;
  std::vector<Move> loads_, stores_;
  size_t move_ = 0;    // of them
  int64_t moved_ = 0;  // elements of it
};

}  // namespace horocache::program
