#include "control/selector.h"

#include <gtest/gtest.h>

#include "control/test_network.h"

namespace horocache::control {
namespace {

constexpr uint32_t Bit(wire::Op op) { return 1u << static_cast<int>(op); }
constexpr uint32_t kCpuBit = 1u << static_cast<int>(wire::DeviceClass::kCpu);

std::vector<BackendTraits> Backends() {
  BackendTraits loopback{"loopback", ~0u, ~0u, 1, 1, {}};
  BackendTraits shm{"shm", Bit(wire::Op::kAllreduce) | Bit(wire::Op::kAllgather), kCpuBit, 2, 64, {"auto", "oneshot"}};
  BackendTraits mpi{"mpi", ~0u, kCpuBit, 1, 1 << 30, {"default", "ring"}};
  return {loopback, shm, mpi};
}

std::string Chosen(const Selector& selector, const wire::Signature& signature, int64_t bytes = 16) {
  const auto choice = selector.Choose(signature, bytes);
  if (!choice.ok()) return choice.status().ToString();
  return selector.backends()[choice->backend].name + "/" + std::to_string(choice->algorithm) + "@" +
         std::to_string(choice->lane);
}

Selector Make(int world, const std::string& rules) {
  auto selector = Selector::Parse(Backends(), {world}, rules);
  EXPECT_TRUE(selector.ok()) << selector.status().ToString();
  return std::move(selector.value());
}

std::string Error(const std::string& rules) {
  const auto selector = Selector::Parse(Backends(), {2}, rules, "", " Note.");
  EXPECT_FALSE(selector.ok()) << rules;
  if (selector.ok()) return "";
  EXPECT_EQ(selector.status().code(), StatusCode::kInvalidArgument);
  return selector.status().message();
}

TEST(Selector, TheFirstBackendThatSupportsTheOperationIsTheDefault) {
  EXPECT_EQ(Chosen(Make(1, ""), Tensor("a")), "loopback/0@0");
  EXPECT_EQ(Chosen(Make(2, ""), Tensor("a")), "shm/0@1");
  EXPECT_EQ(Chosen(Make(65, ""), Tensor("a")), "mpi/0@2");
  EXPECT_EQ(Chosen(Make(2, ""), OfOp(wire::Op::kBroadcast, "a", 0)), "mpi/0@2");
}

TEST(Selector, ASignatureMayNameABackendAndItsAlgorithm) {
  const Selector selector = Make(2, "*=mpi/ring");
  wire::Signature signature = Tensor("a");
  signature.backend = "shm";
  EXPECT_EQ(Chosen(selector, signature), "shm/0@1") << "the backend of the call overrides the rules";
  signature.backend = "shm/oneshot";
  EXPECT_EQ(Chosen(selector, signature), "shm/1@1");
  for (const auto& [asked, words] : std::vector<std::pair<std::string, std::string>>{
           {"shm/ring", "there is no algorithm of backend shm 'ring'. Known: auto, oneshot."},
           {"shmm", "there is no backend 'shmm'; did you mean 'shm'? Known: loopback, shm, mpi."},
           {"/oneshot", "there is no backend ''"}}) {
    signature.backend = asked;
    const auto choice = selector.Choose(signature, 16);
    ASSERT_FALSE(choice.ok()) << asked;
    EXPECT_EQ(choice.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(choice.status().message().find(words), std::string::npos) << choice.status().message();
  }
}

TEST(Selector, RulesNameEveryOperation) {
  for (int op = 0; op < wire::kNumOps; ++op) {
    wire::Signature signature = Tensor("a");
    signature.op = static_cast<wire::Op>(op);
    const std::string rule = std::string(OpName(signature.op)) + "=mpi/ring";
    EXPECT_EQ(Chosen(Make(2, rule), signature), "mpi/1@2") << rule;
  }
}

TEST(Selector, RulesComeFirstAndInOrder) {
  const Selector selector = Make(2, "allreduce:0-64k=shm/oneshot; allreduce=mpi/ring;");
  EXPECT_EQ(Chosen(selector, Tensor("a"), 0), "shm/1@1");
  EXPECT_EQ(Chosen(selector, Tensor("a"), 65535), "shm/1@1");
  EXPECT_EQ(Chosen(selector, Tensor("a"), 65536), "mpi/1@2");
  EXPECT_EQ(Chosen(selector, OfOp(wire::Op::kAllgather, "a")), "shm/0@1");
}

TEST(Selector, RulesMayNameTypeDeviceAndWorld) {
  const std::string rules = "allreduce,float16=mpi/ring; *,cpu,3-8ranks:0-1k=mpi; allreduce,4ranks=shm/oneshot";
  const auto of_type = [](DType dtype) {
    wire::Signature signature = Tensor("a");
    for (wire::TensorMeta& tensor : signature.tensors) tensor.dtype = dtype;
    return signature;
  };
  EXPECT_EQ(Chosen(Make(2, rules), of_type(DType::kFloat16)), "mpi/1@2");
  EXPECT_EQ(Chosen(Make(2, rules), of_type(DType::kFloat32)), "shm/0@1");
  EXPECT_EQ(Chosen(Make(4, rules), of_type(DType::kFloat32)), "mpi/0@2");
  EXPECT_EQ(Chosen(Make(4, rules), of_type(DType::kFloat32), 1024), "shm/1@1");
  EXPECT_EQ(Chosen(Make(9, rules), of_type(DType::kFloat32)), "shm/0@1");
  EXPECT_NE(Make(4, rules).Hash(), Make(4, "allreduce,float16=mpi/ring; *,cpu,3-9ranks:0-1k=mpi").Hash());
  EXPECT_NE(Make(4, rules).ToString().find("*,cpu,3-8ranks:0-1024=mpi"), std::string::npos)
      << Make(4, rules).ToString();
  EXPECT_NE(Error("allreduce,flaot16=shm").find("did you mean 'float16'?"), std::string::npos);
  EXPECT_NE(Error("allreduce,8-2ranks=shm").find("is not a number of ranks"), std::string::npos);
}

TEST(Selector, SizesTakeKMAndGAndAnOpenEnd) {
  const Selector selector = Make(2, "allreduce:1k-2M=mpi;allreduce:1g-=mpi/ring");
  EXPECT_EQ(Chosen(selector, Tensor("a"), 1023), "shm/0@1");
  EXPECT_EQ(Chosen(selector, Tensor("a"), 1024), "mpi/0@2");
  EXPECT_EQ(Chosen(selector, Tensor("a"), (2 << 20) - 1), "mpi/0@2");
  EXPECT_EQ(Chosen(selector, Tensor("a"), 2 << 20), "shm/0@1");
  EXPECT_EQ(Chosen(selector, Tensor("a"), int64_t{1} << 30), "mpi/1@2");
}

TEST(Selector, AStarIsAnyOperationAndSizesSkipOperationsWhoseSizesDiffer) {
  EXPECT_EQ(Chosen(Make(2, "*=mpi"), OfOp(wire::Op::kAllgather, "a")), "mpi/0@2");
  EXPECT_EQ(Chosen(Make(2, "*:0-1g=mpi"), Tensor("a")), "mpi/0@2");
  EXPECT_EQ(Chosen(Make(2, "*:0-1g=mpi"), OfOp(wire::Op::kAllgather, "a")), "shm/0@1");
}

TEST(Selector, TheBackendOfTheCallOverridesTheRules) {
  wire::Signature signature = Tensor("a");
  signature.backend = "mpi";
  EXPECT_EQ(Chosen(Make(2, "allreduce=shm"), signature), "mpi/0@2");
}

TEST(Selector, AnOperationWithoutABackendIsAnErrorThatListsTheBackends) {
  wire::Signature signature = Tensor("a");
  signature.device_class = wire::DeviceClass::kCuda;
  const auto choice = Make(2, "").Choose(signature, 4);
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(choice.status().message(),
            "allreduce 'a': no backend runs allreduce of float32 on cuda tensors with 2 ranks. Backends here: "
            "loopback, shm, mpi.");
  signature = Tensor("a");
  signature.backend = "shn";
  EXPECT_NE(Make(2, "").Choose(signature, 4).status().message().find("did you mean 'shm'?"), std::string::npos);
  signature.backend = "loopback";
  EXPECT_NE(Make(2, "").Choose(signature, 4).status().message().find("backend 'loopback' does not run"),
            std::string::npos);
}

TEST(Selector, BadRulesAreNamedWithTheNearestValidWord) {
  EXPECT_NE(Error("allreduc=shm").find("did you mean 'allreduce'?"), std::string::npos) << Error("allreduc=shm");
  EXPECT_NE(Error("allreduce=sham").find("did you mean 'shm'?"), std::string::npos);
  EXPECT_NE(Error("allreduce=shm/onshot").find("did you mean 'oneshot'?"), std::string::npos);
  EXPECT_NE(Error("broadcast=shm").find("backend shm does not run broadcast"), std::string::npos);
  EXPECT_NE(Error("allreduce=smh").find(". Note."), std::string::npos);
  EXPECT_NE(Error("allreduce").find("op[,dtype][,device][,ranks][,hosts][:low-high]=backend[/algorithm]"),
            std::string::npos);
  for (const char* range : {"5", "-5", "a-b", "1x-", "9999999999g-", "64k-1k", "1-1", "--", "1-2-3"}) {
    EXPECT_NE(Error(std::string("allreduce:") + range + "=shm").find("size range"), std::string::npos) << range;
  }
  for (const char* op : {"allgather", "alltoall", "gather", "scatter"}) {
    EXPECT_NE(Error(std::string(op) + ":0-1k=mpi").find("differ by rank"), std::string::npos) << op;
  }
}

TEST(Selector, HashesAreEqualOnlyForEqualTables) {
  const uint64_t base = Make(2, "allreduce:0-64k=shm").Hash();
  EXPECT_EQ(base, Make(2, " allreduce:0-65536 = shm ;").Hash());
  EXPECT_NE(base, Make(2, "").Hash());
  EXPECT_NE(base, Make(3, "allreduce:0-64k=shm").Hash());
  EXPECT_NE(base, Make(2, "allreduce:0-64k=shm/oneshot").Hash());
  auto others = Backends();
  std::swap(others[1], others[2]);
  EXPECT_NE(Make(2, "").Hash(), Selector::Parse(others, {2}, "").value().Hash());
}

TEST(Selector, PrintsItsTable) {
  EXPECT_EQ(Make(2, "*:1k-=mpi/ring;allgather=shm").ToString(),
            "*:1024-=mpi/ring\nallgather=shm/auto\ndefault 0=loopback\ndefault 1=shm\ndefault 2=mpi\n");
}

}  // namespace
}  // namespace horocache::control
