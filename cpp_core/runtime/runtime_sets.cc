// Adding and removing process sets: see Note [Process sets at run time] in process_sets.h.
#include <utility>

#include "runtime/runtime.h"

namespace horocache::runtime {
namespace {

std::string NameOf(uint32_t number, const std::string& what) {
  return "process_set." + std::to_string(number) + "." + what;
}

}  // namespace

// Submits an operation without data, which only checks that all ranks give the same signature.
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

Status Runtime::CheckMpiThreads() const {
  if (job_.mpi.empty() || job_.mpi.mpi().QueryThread() == net::MpiThreads::kMultiple) return Status::Ok();
  return UnsupportedError(
      "process sets cannot be added or removed while the job runs: members make and free communicators meanwhile, and "
      "this MPI may be used by one thread at a time (HOROCACHE_MPI_THREADS_DISABLE, or the level that the program "
      "asked "
      "MPI for). Name all sets in init(process_sets=[...])");
}

Status Runtime::ProposeSet(uint32_t number, std::vector<int> ranks, int64_t* handle) {
  HC_RETURN_IF_ERROR(CheckMpiThreads());
  const std::vector<int64_t> shape(ranks.begin(), ranks.end());
  HC_RETURN_IF_ERROR(sets_.Propose(number, std::move(ranks)));
  Status submitted = SubmitProposal(NameOf(number, "add"), shape, handle);
  if (!submitted.ok()) sets_.Close(number);
  return submitted;
}

Status Runtime::DeclareSet(uint32_t number, std::vector<int> ranks) {
  HC_RETURN_IF_ERROR(CheckMpiThreads());
  return sets_.Declare(number, std::move(ranks));
}

Status Runtime::ConnectSet(uint32_t number, const std::function<bool()>& go_on) {
  HC_RETURN_IF_ERROR(sets_.CheckPending(number));
  if (!IsMember(number)) return Status::Ok();
  JobConfig config = ConfigOfJob();
  config.check = [&]() -> Status {
    if (go_on && !go_on()) return {StatusCode::kAborted, "adding " + sets_.Describe(number) + " was interrupted"};
    return engine_->JobEnd();
  };
  StatusOr<SetMembership> membership = ConnectOnHost(config, job_, sets_, number);
  if (!membership.ok()) return membership.status();
  MutexLock lock(connected_mutex_);
  connected_.insert_or_assign(number, std::move(*membership));
  return Status::Ok();
}

Status Runtime::OpenSet(uint32_t number) {
  HC_RETURN_IF_ERROR(sets_.CheckPending(number));
  if (IsMember(number)) {
    SetMembership membership;
    {
      MutexLock lock(connected_mutex_);
      const auto connected = connected_.extract(number);
      if (connected.empty()) return InvalidArgumentError(sets_.Describe(number) + ": its ranks are not connected");
      membership = std::move(connected.mapped());
    }
    JobConfig config = ConfigOfJob();
    config.check = [this] { return engine_->JobEnd(); };
    StatusOr<SetParts> set = ConnectAndMakeSet(config, std::move(membership));
    if (!set.ok()) return set.status();
    HC_RETURN_IF_ERROR(engine_->Add(std::move(*set)));
  }
  sets_.Open(number);
  return Status::Ok();
}

Status Runtime::ProposeRemoval(uint32_t number, int64_t* handle) {
  HC_RETURN_IF_ERROR(CheckMpiThreads());
  HC_RETURN_IF_ERROR(sets_.CheckRemovable(number));
  return SubmitProposal(NameOf(number, "remove"), {}, handle);
}

Status Runtime::LeaveSet(uint32_t number, const std::function<bool()>& go_on) {
  HC_RETURN_IF_ERROR(sets_.CheckRemovable(number));
  sets_.Close(number);
  ForgetSelector(number);
  return IsMember(number) ? engine_->Remove(number, go_on) : Status::Ok();
}

Status Runtime::DropSet(uint32_t number) {
  HC_RETURN_IF_ERROR(sets_.CheckPending(number));
  sets_.Close(number);
  {
    MutexLock lock(connected_mutex_);
    connected_.erase(number);
  }
  ForgetSelector(number);
  if (IsMember(number)) engine_->Drop(number);
  return Status::Ok();
}

}  // namespace horocache::runtime
