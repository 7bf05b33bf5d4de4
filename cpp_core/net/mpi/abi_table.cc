// The three ABIs behind class Mpi. See Note [Three ABIs] in mpi.h.

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "net/mpi/abi_constants.h"
#include "net/mpi/mpi.h"

namespace horocache::net {
namespace {

constexpr size_t kVersionBytes = 8192;  // the largest limit of the three ABIs
constexpr size_t kErrorBytes = 512;
constexpr size_t kStatusBytes = 64;  // MPI_Status has at most 32
using Aint = intptr_t;               // MPI_Aint

// Members of Functions: MPI's names without the prefix MPI_.
// clang-format off
#define HC_MPI_FUNCTIONS(F)                                                                                       \
  F(Get_library_version) F(Error_string) F(Initialized) F(Finalized) F(Init_thread) F(Query_thread) F(Finalize)   \
  F(Comm_rank) F(Comm_size) F(Comm_idup) F(Comm_free) F(Comm_group) F(Comm_create_group) F(Comm_set_errhandler)   \
  F(Group_incl) F(Group_free) F(Op_create) F(Op_free) F(Isend) F(Irecv) F(Iallreduce) F(Ireduce) F(Ibcast)        \
  F(Iallgatherv) F(Ialltoallv) F(Igatherv) F(Iscatterv) F(Ibarrier) F(Improbe) F(Imrecv) F(Test) F(Get_count)       \
  F(Win_create) F(Win_free) F(Win_set_errhandler) F(Win_lock_all) F(Win_unlock_all) F(Put) F(Accumulate)          \
  F(Win_flush)
// clang-format on

// `H`: the ABI's handle type, which is the same for all handles.
template <typename H>
struct Functions {
  int (*Get_library_version)(char*, int*);
  int (*Error_string)(int, char*, int*);
  int (*Initialized)(int*);
  int (*Finalized)(int*);
  int (*Init_thread)(int*, char***, int, int*);
  int (*Query_thread)(int*);
  int (*Finalize)();
  int (*Comm_rank)(H, int*);
  int (*Comm_size)(H, int*);
  int (*Comm_idup)(H, H*, H*);
  int (*Comm_free)(H*);
  int (*Comm_group)(H, H*);
  int (*Comm_create_group)(H, H, int, H*);
  int (*Comm_set_errhandler)(H, H);
  int (*Group_incl)(H, int, const int*, H*);
  int (*Group_free)(H*);
  int (*Op_create)(MpiFold, int, H*);
  int (*Op_free)(H*);
  int (*Isend)(const void*, int, H, int, int, H, H*);
  int (*Irecv)(void*, int, H, int, int, H, H*);
  int (*Iallreduce)(const void*, void*, int, H, H, H, H*);
  int (*Ireduce)(const void*, void*, int, H, H, int, H, H*);
  int (*Ibcast)(void*, int, H, int, H, H*);
  int (*Iallgatherv)(const void*, int, H, void*, const int*, const int*, H, H, H*);
  int (*Ialltoallv)(const void*, const int*, const int*, H, void*, const int*, const int*, H, H, H*);
  int (*Igatherv)(const void*, int, H, void*, const int*, const int*, H, int, H, H*);
  int (*Iscatterv)(const void*, const int*, const int*, H, void*, int, H, int, H, H*);
  int (*Ibarrier)(H, H*);
  int (*Improbe)(int, int, H, int*, H*, void*);
  int (*Imrecv)(void*, int, H, H*, H*);
  int (*Test)(H*, int*, void*);
  int (*Get_count)(const void*, H, int*);
  int (*Win_create)(void*, Aint, int, H, H, H*);
  int (*Win_free)(H*);
  int (*Win_set_errhandler)(H, H);
  int (*Win_lock_all)(int, H);
  int (*Win_unlock_all)(H);
  int (*Put)(const void*, int, H, int, Aint, int, H, H);
  int (*Accumulate)(const void*, int, H, int, Aint, int, H, H, H);
  int (*Win_flush)(int, H);
};

template <typename H>
class Table final : public Mpi {
 public:
  Table(MpiAbi abi, DynamicLibrary library, const MpiConstants& constants)
      : abi_(abi), library_(std::move(library)), constants_(constants) {}

  // Resolves every function; kUnsupported names one that is missing.
  Status Resolve() {
    Status status;
    const auto take = [&](const char* name, auto* function) {
      void* symbol = library_.Find(name);
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
      if (symbol == nullptr && status.ok()) {
        status = Status(StatusCode::kUnsupported,
                        "the MPI library '" + library_.path() + "' has no " + name + "; horocache needs MPI 3.1");
      }
    };
#define HC_TAKE(name) take("MPI_" #name, &f_.name);
    HC_MPI_FUNCTIONS(HC_TAKE)
#undef HC_TAKE
    return status;
  }

  MpiAbi abi() const override { return abi_; }
  const std::string& path() const override { return library_.path(); }
  std::string Version() const override {
    std::string text(kVersionBytes, '\0');
    int length = 0;
    if (f_.Get_library_version(text.data(), &length) != 0) return "unknown";
    text = text.c_str();
    return text.substr(0, text.find_first_of("\r\n"));
  }

  bool Initialized() const override { return Flag(f_.Initialized); }
  bool Finalized() const override { return Flag(f_.Finalized); }
  StatusOr<MpiThreads> InitThread(MpiThreads wanted) override {
    int provided = 0;
    const int code = f_.Init_thread(nullptr, nullptr, constants_.threads[static_cast<int>(wanted)], &provided);
    if (code != 0) return Failed("Init_thread", code);
    return Level(provided);
  }
  MpiThreads QueryThread() const override {
    int provided = 0;
    if (!Finalized()) f_.Query_thread(&provided);
    return Level(provided);
  }
  Status Finalize() override { return Done("Finalize", f_.Finalize()); }

  MpiComm world() const override { return {constants_.world}; }
  int Rank(MpiComm comm) const override { return Number(f_.Comm_rank, comm); }
  int Size(MpiComm comm) const override { return Number(f_.Comm_size, comm); }
  Status StartDup(MpiComm comm, MpiComm* copy, MpiRequest* request) override {
    // The library may write the new communicator when the request completes, so it gets the caller's memory.
    static_assert(sizeof(H) <= sizeof(copy->handle));
    copy->handle = 0;
    H started{};
    const int code = f_.Comm_idup(To(comm.handle), reinterpret_cast<H*>(&copy->handle), &started);
    request->handle = From(started);
    return Done("Comm_idup", code);
  }
  Status CreateGroup(MpiComm comm, const std::vector<int>& ranks, int tag, MpiComm* group) override {
    H all{}, some{}, made{};
    HC_RETURN_IF_ERROR(Done("Comm_group", f_.Comm_group(To(comm.handle), &all)));
    Status status = Done("Group_incl", f_.Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some));
    if (status.ok()) {
      status = Done("Comm_create_group", f_.Comm_create_group(To(comm.handle), some, tag, &made));
      group->handle = From(made);
      f_.Group_free(&some);
    }
    f_.Group_free(&all);
    return status;
  }
  Status ReturnErrors(MpiComm comm) override {
    return Done("Comm_set_errhandler", f_.Comm_set_errhandler(To(comm.handle), To(constants_.errors_return)));
  }
  Status Free(MpiComm* comm) override {
    H handle = To(comm->handle);
    const int code = f_.Comm_free(&handle);
    comm->handle = From(handle);
    return Done("Comm_free", code);
  }

  MpiType byte() const override { return {constants_.byte}; }
  MpiType TypeOf(DType dtype) const override { return {constants_.types[static_cast<size_t>(dtype)]}; }
  MpiOp OpOf(MpiReduction reduction) const override { return {constants_.ops[static_cast<size_t>(reduction)]}; }
  StatusOr<MpiOp> MakeOp(MpiFold fold) override {
    H op{};
    constexpr int kCommutes = 1;
    if (const int code = f_.Op_create(fold, kCommutes, &op); code != 0) return Failed("Op_create", code);
    return MpiOp{From(op)};
  }
  Status FreeOp(MpiOp* op) override {
    H handle = To(op->handle);
    const int code = f_.Op_free(&handle);
    op->handle = From(handle);
    return Done("Op_free", code);
  }
  void* in_place() const override { return constants_.in_place; }

  Status Isend(const void* data, int count, MpiType type, int to, int tag, MpiComm comm, MpiRequest* out) override {
    return Start("Isend", out, f_.Isend, data, count, To(type.handle), to, tag, To(comm.handle));
  }
  Status Irecv(void* data, int count, MpiType type, int from, int tag, MpiComm comm, MpiRequest* out) override {
    return Start("Irecv", out, f_.Irecv, data, count, To(type.handle), from, tag, To(comm.handle));
  }
  Status Iallreduce(const void* in, void* result, int count, MpiType type, MpiOp op, MpiComm comm,
                    MpiRequest* out) override {
    return Start("Iallreduce", out, f_.Iallreduce, in, result, count, To(type.handle), To(op.handle), To(comm.handle));
  }
  Status Ireduce(const void* in, void* result, int count, MpiType type, MpiOp op, int root, MpiComm comm,
                 MpiRequest* out) override {
    return Start("Ireduce", out, f_.Ireduce, in, result, count, To(type.handle), To(op.handle), root, To(comm.handle));
  }
  Status Ibcast(void* data, int count, MpiType type, int root, MpiComm comm, MpiRequest* out) override {
    return Start("Ibcast", out, f_.Ibcast, data, count, To(type.handle), root, To(comm.handle));
  }
  Status Iallgatherv(const void* in, int count, void* result, const int* counts, const int* starts, MpiType type,
                     MpiComm comm, MpiRequest* out) override {
    return Start("Iallgatherv", out, f_.Iallgatherv, in, count, To(type.handle), result, counts, starts,
                 To(type.handle), To(comm.handle));
  }
  Status Ialltoallv(const void* in, const int* in_counts, const int* in_starts, void* result, const int* out_counts,
                    const int* out_starts, MpiType type, MpiComm comm, MpiRequest* out) override {
    return Start("Ialltoallv", out, f_.Ialltoallv, in, in_counts, in_starts, To(type.handle), result, out_counts,
                 out_starts, To(type.handle), To(comm.handle));
  }
  Status Igatherv(const void* in, int count, void* result, const int* counts, const int* starts, MpiType type, int root,
                  MpiComm comm, MpiRequest* out) override {
    return Start("Igatherv", out, f_.Igatherv, in, count, To(type.handle), result, counts, starts, To(type.handle),
                 root, To(comm.handle));
  }
  Status Iscatterv(const void* in, const int* counts, const int* starts, void* result, int count, MpiType type,
                   int root, MpiComm comm, MpiRequest* out) override {
    return Start("Iscatterv", out, f_.Iscatterv, in, counts, starts, To(type.handle), result, count, To(type.handle),
                 root, To(comm.handle));
  }
  Status Ibarrier(MpiComm comm, MpiRequest* out) override {
    return Start("Ibarrier", out, f_.Ibarrier, To(comm.handle));
  }

  StatusOr<bool> Improbe(int tag, MpiComm comm, MpiMessage* message, Received* received) override {
    HC_RETURN_IF_ERROR(Lives("Improbe"));
    LibraryStatus status = {};
    H handle{};
    int flag = 0;
    const int code = f_.Improbe(constants_.any_source, tag, To(comm.handle), &flag, &handle, status.data());
    if (code != 0) return Failed("Improbe", code);
    if (flag == 0) return false;
    message->handle = From(handle);
    Read(status, received);
    return true;
  }
  Status Imrecv(void* data, int count, MpiType type, MpiMessage* message, MpiRequest* out) override {
    H handle = To(message->handle);
    const Status started = Start("Imrecv", out, f_.Imrecv, data, count, To(type.handle), &handle);
    message->handle = From(handle);
    return started;
  }

  Status CreateWindow(void* memory, size_t bytes, MpiComm comm, MpiWin* window) override {
    HC_RETURN_IF_ERROR(Lives("Win_create"));
    constexpr int kUnitBytes = 1;
    constexpr int kNoAssertion = 0;
    H made{};
    HC_RETURN_IF_ERROR(Done("Win_create", f_.Win_create(memory, static_cast<Aint>(bytes), kUnitBytes,
                                                        To(constants_.null_info), To(comm.handle), &made)));
    window->handle = From(made);
    HC_RETURN_IF_ERROR(Done("Win_set_errhandler", f_.Win_set_errhandler(made, To(constants_.errors_return))));
    return Done("Win_lock_all", f_.Win_lock_all(kNoAssertion, made));
  }
  Status FreeWindow(MpiWin* window) override {
    HC_RETURN_IF_ERROR(Lives("Win_free"));
    H handle = To(window->handle);
    HC_RETURN_IF_ERROR(Done("Win_unlock_all", f_.Win_unlock_all(handle)));
    const int code = f_.Win_free(&handle);
    window->handle = From(handle);
    return Done("Win_free", code);
  }
  Status Put(const void* data, int bytes, int to, size_t offset, MpiWin window) override {
    HC_RETURN_IF_ERROR(Lives("Put"));
    const H type = To(constants_.byte);
    return Done("Put", f_.Put(data, bytes, type, to, static_cast<Aint>(offset), bytes, type, To(window.handle)));
  }
  Status StoreWord(const uint64_t* word, int to, size_t offset, MpiWin window) override {
    HC_RETURN_IF_ERROR(Lives("Accumulate"));
    const H type = To(constants_.types[static_cast<size_t>(DType::kUint64)]);
    return Done("Accumulate", f_.Accumulate(word, 1, type, to, static_cast<Aint>(offset), 1, type,
                                            To(constants_.replace), To(window.handle)));
  }
  Status FlushWindow(int to, MpiWin window) override {
    HC_RETURN_IF_ERROR(Lives("Win_flush"));
    return Done("Win_flush", f_.Win_flush(to, To(window.handle)));
  }

  StatusOr<bool> Test(MpiRequest* request, Received* received) override {
    HC_RETURN_IF_ERROR(Lives("Test"));
    LibraryStatus status = {};
    H handle = To(request->handle);
    int flag = 0;
    const int code = f_.Test(&handle, &flag, received == nullptr ? constants_.status_ignore : status.data());
    request->handle = From(handle);
    if (code != 0) return Failed("Test", code);
    if (flag == 0) return false;
    if (received != nullptr) Read(status, received);
    return true;
  }
  bool IsNull(const MpiRequest& request) const override { return request.handle == constants_.null_request; }
  MpiRequest null_request() const override { return {constants_.null_request}; }

 private:
  struct alignas(16) LibraryStatus : std::array<std::byte, kStatusBytes> {};
  void Read(const LibraryStatus& status, Received* received) const {
    const std::byte* source = status.data() + constants_.status_source_offset;
    std::memcpy(&received->from, source, sizeof(int));
    std::memcpy(&received->tag, source + sizeof(int), sizeof(int));
    f_.Get_count(status.data(), To(constants_.byte), &received->count);
  }

  static H To(uintptr_t handle) {
    if constexpr (std::is_pointer_v<H>) {
      return reinterpret_cast<H>(handle);
    } else {
      return static_cast<H>(handle);
    }
  }
  static uintptr_t From(H handle) {
    if constexpr (std::is_pointer_v<H>) {
      return reinterpret_cast<uintptr_t>(handle);
    } else {
      return static_cast<uint32_t>(handle);
    }
  }

  static bool Flag(int (*function)(int*)) {
    int flag = 0;
    return function(&flag) == 0 && flag != 0;
  }
  static int Number(int (*function)(H, int*), MpiComm comm) {
    int number = -1;
    function(To(comm.handle), &number);
    return number;
  }
  // The highest level that is not above `provided`, which may lie between two levels.
  MpiThreads Level(int provided) const {
    int level = 0;
    while (level < 3 && constants_.threads[level + 1] <= provided) ++level;
    return static_cast<MpiThreads>(level);
  }

  template <typename F, typename... Arguments>
  Status Start(const char* name, MpiRequest* out, F function, Arguments... arguments) {
    HC_RETURN_IF_ERROR(Lives(name));
    H request = To(constants_.null_request);
    const int code = function(arguments..., &request);
    out->handle = From(request);
    return code == 0 ? Status::Ok() : Failed(name, code);
  }
  // Fails once MPI is finalised: any other call would end the process then.
  Status Lives(const char* name) const {
    if (!Finalized()) return Status::Ok();
    return {StatusCode::kAborted, std::string("MPI_") + name + ": the program has finalised '" + path() +
                                      "' while horocache used it. Call horocache's shutdown() before MPI_Finalize"};
  }
  Status Done(const char* name, int code) const { return code == 0 ? Status::Ok() : Failed(name, code); }
  Status Failed(const char* name, int code) const {
    std::array<char, kErrorBytes> text = {};
    int length = 0;
    const bool known = f_.Error_string(code, text.data(), &length) == 0;
    return Status(StatusCode::kInternal, std::string("MPI_") + name + " failed with code " + std::to_string(code) +
                                             (known ? std::string(": ") + text.data() : std::string()));
  }

  const MpiAbi abi_;
  const DynamicLibrary library_;
  const MpiConstants constants_;
  Functions<H> f_ = {};
};

// Recognises Open MPI by its objects, and the standard ABI by its version: only libraries of that ABI give one (MPICH
// 5's own library has the function, too, but returns -1).
MpiAbi Recognise(const DynamicLibrary& library) {
  if (library.Has("ompi_mpi_comm_world")) return MpiAbi::kOpenMpi;
  int major = -1, minor = -1;
  const auto version = reinterpret_cast<int (*)(int*, int*)>(library.Find("MPI_Abi_get_version"));
  const bool standard = version != nullptr && version(&major, &minor) == 0 && major >= 1;
  return standard ? MpiAbi::kStandard : MpiAbi::kMpich;
}

template <typename H>
StatusOr<std::unique_ptr<Mpi>> Make(MpiAbi abi, DynamicLibrary library, const MpiConstants& constants) {
  auto table = std::make_unique<Table<H>>(abi, std::move(library), constants);
  HC_RETURN_IF_ERROR(table->Resolve());
  return std::unique_ptr<Mpi>(std::move(table));
}

}  // namespace

std::string_view MpiAbiName(MpiAbi abi) {
  static constexpr std::array<std::string_view, 3> kNames = {"MPI standard", "Open MPI", "MPICH"};
  return kNames.at(static_cast<size_t>(abi));
}

std::string_view MpiThreadsName(MpiThreads level) {
  static constexpr std::array<std::string_view, 4> kNames = {"single", "funneled", "serialized", "multiple"};
  return kNames.at(static_cast<size_t>(level));
}

StatusOr<std::unique_ptr<Mpi>> Mpi::Load(DynamicLibrary library) {
  if (!library.Has("MPI_Init_thread")) {
    return Status(StatusCode::kUnsupported, "'" + library.path() + "' is not an MPI library: it lacks MPI_Init_thread");
  }
  const MpiAbi abi = Recognise(library);
  StatusOr<MpiConstants> constants = ConstantsOf(abi, library);
  if (!constants.ok()) return constants.status();
  if (abi == MpiAbi::kMpich) return Make<int>(abi, std::move(library), *constants);
  return Make<void*>(abi, std::move(library), *constants);
}

}  // namespace horocache::net
