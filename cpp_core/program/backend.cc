#include "program/backend.h"

#include <string>
#include <utility>

#include "data/validate.h"
#include "program/host_links.h"
#include "program/operation.h"
#include "program/shm_links.h"

namespace horocache::program {
namespace {

// Threads: the driving thread. Owns the queue and the built-in backend; the arena owns the memory.
class ProgramBackend final : public data::Backend {
 public:
  ProgramBackend(ProgramResources resources, int rank, int size, std::unique_ptr<Links> links)
      : traits_(ProgramTraits(*resources.library)), queue_(std::move(resources), rank, size, std::move(links)) {}

  const control::BackendTraits& traits() const override { return traits_; }

  Status Supports(const data::Collective& collective) const override {
    HC_RETURN_IF_ERROR(data::CheckCollective(collective, traits_, queue_.size));
    if (collective.algorithm == 0) return Status::Ok();
    const LibraryProgram& one = queue_.resources.library->programs[collective.algorithm - 1];
    if (one.op == collective.op && one.program.ranks == queue_.size) return Status::Ok();
    return {StatusCode::kUnsupported, "program " + one.name + " is for " + std::string(wire::OpName(one.op)) + " of " +
                                          std::to_string(one.program.ranks) + " ranks, and cannot run " +
                                          std::string(wire::OpName(collective.op)) + " of " +
                                          std::to_string(queue_.size)};
  }

  std::unique_ptr<data::CollectiveTask> Start(data::Collective collective) override {
    return std::unique_ptr<data::CollectiveTask>(new (&queue_) ProgramTask(&queue_, std::move(collective)));
  }

  const data::DataCounters& counters() const override { return queue_.counters; }
  Status broken() const override { return queue_.broken(); }

 private:
  const control::BackendTraits traits_;
  ProgramQueue queue_;
};

}  // namespace

control::BackendTraits ProgramTraits(const Library& library) {
  control::BackendTraits traits;
  traits.name = "program";
  traits.ops = data::AllCollectives();
  traits.device_classes = 1u << static_cast<int>(wire::DeviceClass::kCpu);
  traits.algorithms.emplace_back("auto");
  for (const LibraryProgram& one : library.programs) traits.algorithms.push_back(one.name);
  return traits;
}

std::unique_ptr<data::Backend> MakeProgramBackend(ProgramResources resources) {
  const bool one_host = resources.comm.empty();
  const int rank = one_host ? resources.links.rank : resources.comm.rank();
  const int size = one_host ? resources.links.size : resources.comm.size();
  std::unique_ptr<Links> links;
  if (one_host) {
    links = std::make_unique<ShmLinks>(std::move(resources.links));
  } else {
    links = std::make_unique<HostLinks>(std::move(resources.links), std::move(resources.comm),
                                        std::move(resources.host_of));
  }
  return std::make_unique<ProgramBackend>(std::move(resources), rank, size, std::move(links));
}

}  // namespace horocache::program
