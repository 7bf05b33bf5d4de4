// Process sets that come and go: see Note [Process sets at run time] in process_sets.h.
#include <utility>

#include "base/clock.h"
#include "runtime/runtime.h"

namespace horocache::runtime {
namespace {

std::string NameOf(uint32_t number, const std::string& what) {
  return "process_set." + std::to_string(number) + "." + what;
}

}  // namespace

// An operation without data: that all ranks give the same signature is all that it does.
Status Runtime::SubmitProposal(const std::string& name, std::vector<int64_t> ranks, int64_t* handle) {
  Operation* operation = table_.New();
  wire::Signature& signature = operation->request.signature;
  signature = {};
  signature.op = wire::Op::kRegister;
  signature.name = name;
  signature.tensors = {{name, DType::kInt64, std::move(ranks)}};
  operation->tensors.clear();
  operation->allocate_results = false;
  HC_RETURN_IF_ERROR(Submit(operation, true));
  *handle = operation->handle;
  return Status::Ok();
}

Status Runtime::ProposeSet(std::vector<int> ranks, uint32_t* number, int64_t* handle) {
  if (!job_.mpi.empty() && job_.mpi.mpi().QueryThread() != net::MpiThreads::kMultiple) {
    return UnsupportedError(
        "process sets cannot be added while the job runs: members make communicators meanwhile, and this MPI may be "
        "used by one thread at a time (HOROCACHE_MPI_THREADS_DISABLE, or the level that the program asked MPI for). "
        "Name all sets in init(process_sets=[...])");
  }
  const std::vector<int64_t> shape(ranks.begin(), ranks.end());
  const StatusOr<uint32_t> proposed = sets_.Propose(std::move(ranks));
  if (!proposed.ok()) return proposed.status();
  *number = *proposed;
  Status submitted = SubmitProposal(NameOf(*number, "add"), shape, handle);
  if (!submitted.ok()) sets_.Withdraw(*number);
  return submitted;
}

Status Runtime::EnterSet(uint32_t number, const std::function<bool()>& go_on) {
  if (IsMember(number)) {
    const auto check = [&]() -> Status {
      if (go_on && !go_on()) return {StatusCode::kAborted, "adding " + sets_.Describe(number) + " was interrupted"};
      return loop_->JobEnd();
    };
    StatusOr<SetParts> set = MeetAndMakeSet(number, {.arena = nullptr, .check = check});
    if (!set.ok()) return set.status();
    HC_RETURN_IF_ERROR(loop_->Add(std::move(*set)));
  }
  sets_.Open(number);
  return Status::Ok();
}

Status Runtime::ProposeRemoval(uint32_t number, int64_t* handle) {
  HC_RETURN_IF_ERROR(sets_.CheckRemovable(number));
  return SubmitProposal(NameOf(number, "remove"), {}, handle);
}

Status Runtime::LeaveSet(uint32_t number, const std::function<bool()>& go_on) {
  HC_RETURN_IF_ERROR(sets_.CheckRemovable(number));
  sets_.Close(number);
  if (!IsMember(number)) return Status::Ok();
  const double limit_s = config_.knobs.shutdown_timeout;
  return loop_->Remove(number, NowNs() + Nanoseconds(limit_s, kNsPerS), go_on);
}

void Runtime::DropSet(uint32_t number) {
  if (IsMember(number)) loop_->Drop(number);
  sets_.Withdraw(number);
}

}  // namespace horocache::runtime
