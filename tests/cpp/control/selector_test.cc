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

// ---- several backends in a call

// The backend of a call that names `backends`, and the reason for the choice.
std::string ChosenAmong(const std::string& backends, const std::string& rules, wire::Op op = wire::Op::kAllreduce,
                        const std::string& table = "") {
  const BackendTraits loopback{"loopback", ~0u, ~0u, 1, 1, {}};
  const BackendTraits shm{"shm", ~0u & ~Bit(wire::Op::kBroadcast), kCpuBit, 2, 64, {"auto", "oneshot", "twoshot"}};
  const BackendTraits mpi{"mpi", ~0u, kCpuBit, 1, 1 << 30, {"default", "ring"}};
  const auto selector = Selector::Parse({loopback, shm, mpi}, {2}, rules, table);
  if (!selector.ok()) return selector.status().message();
  wire::Signature signature = OfOp(op, "a", wire::HasRoot(op) ? 0 : -1);
  signature.backend = backends;
  const auto choice = selector->Choose(signature, 16);
  if (!choice.ok()) return choice.status().message();
  const BackendTraits& traits = selector->backends()[choice->backend];
  EXPECT_EQ(choice->lane, choice->backend);
  return traits.name + (choice->algorithm == 0 ? "" : "/" + traits.algorithms[choice->algorithm]) + " by " +
         std::string(ChosenByName(choice->chosen_by));
}

TEST(Selector, ACallMayNameSeveralBackends) {
  EXPECT_EQ(ChosenAmong("mpi|shm", ""), "mpi by order") << "the first that can";
  EXPECT_EQ(ChosenAmong("loopback|shm", ""), "shm by order") << "loopback is for one rank";
  EXPECT_EQ(ChosenAmong("shm|mpi", "", wire::Op::kBroadcast), "mpi by order");
  EXPECT_EQ(ChosenAmong("mpi|shm", "allreduce=shm/oneshot"), "shm/oneshot by rule");
  EXPECT_EQ(ChosenAmong("mpi|shm", "", wire::Op::kAllreduce, "allreduce=shm/oneshot"), "shm/oneshot by table");
  EXPECT_EQ(ChosenAmong(" mpi | shm ", "*=shm"), "shm by rule");
  EXPECT_EQ(ChosenAmong("shm|shm|mpi", ""), "shm by order");
}

TEST(Selector, ACallThatNamesOneBackendHasChosenIt) {
  EXPECT_EQ(ChosenAmong("mpi", "*=shm"), "mpi by call");
  EXPECT_EQ(ChosenAmong("mpi/ring", "*=shm"), "mpi/ring by call");
  EXPECT_EQ(ChosenAmong("", "*=mpi"), "mpi by rule");
  EXPECT_EQ(ChosenAmong("", ""), "shm by order");
}

TEST(Selector, RulesForBackendsThatTheCallDoesNotNameAreSkipped) {
  EXPECT_EQ(ChosenAmong("loopback|shm", "allreduce=mpi; allreduce=shm/twoshot"), "shm/twoshot by rule");
  EXPECT_EQ(ChosenAmong("shm|loopback", "allreduce=mpi", wire::Op::kAllreduce, "*=mpi/ring"), "shm by order");
}

TEST(Selector, TheAlgorithmThatACallNamesIsKept) {
  EXPECT_EQ(ChosenAmong("shm/oneshot|mpi", "*=shm"), "shm/oneshot by rule");
  EXPECT_EQ(ChosenAmong("shm/oneshot|mpi", "*=shm/twoshot"), "shm/oneshot by order") << "that rule is for another one";
  EXPECT_EQ(ChosenAmong("mpi|shm/oneshot", "*=shm/twoshot;*=mpi/ring"), "mpi/ring by rule");
  EXPECT_EQ(ChosenAmong("shm/oneshot|shm/twoshot", "*=shm/twoshot"), "shm/twoshot by rule");
  EXPECT_EQ(ChosenAmong("shm/oneshot|shm", "*=shm/twoshot"), "shm/twoshot by rule");
  EXPECT_EQ(ChosenAmong("shm/auto|mpi", "*=shm/twoshot"), "shm/twoshot by rule") << "auto is any";
}

// It would wait behind the work of a device otherwise.
TEST(Selector, ABarrierIsTheHostsUnlessTheCallNamesABackendOfADevice) {
  const BackendTraits nccl{"nccl", ~0u, 1u << static_cast<int>(wire::DeviceClass::kCuda), 1, 1 << 30, {}};
  const BackendTraits shm{"shm", ~0u, kCpuBit, 1, 1 << 30, {}};
  const auto chosen = [&](const std::string& backends, const std::string& rules) {
    wire::Signature barrier = OfOp(wire::Op::kBarrier, "b");
    barrier.backend = backends;
    return Chosen(Selector::Parse({nccl, shm}, {2}, rules).value(), barrier);
  };
  EXPECT_EQ(chosen("", ""), "shm/0@1");
  EXPECT_EQ(chosen("", "*=nccl"), "shm/0@1");
  EXPECT_EQ(chosen("nccl", ""), "nccl/0@0");
  EXPECT_EQ(chosen("nccl|shm", ""), "nccl/0@0");
  EXPECT_EQ(chosen("nccl|shm", "barrier=shm"), "shm/0@1");
}

TEST(Selector, EveryNameOfACallMustBeKnown) {
  EXPECT_NE(ChosenAmong("shm|gloo", "").find("'gloo'"), std::string::npos) << ChosenAmong("shm|gloo", "");
  EXPECT_NE(ChosenAmong("shm/onshot|mpi", "").find("did you mean 'oneshot'?"), std::string::npos);
  for (const char* empty : {"|", "shm|", "|shm", "shm||mpi", " "}) {
    EXPECT_NE(ChosenAmong(empty, "").find("allreduce 'a': "), std::string::npos) << empty;
  }
}

TEST(Selector, NamedBackendsOfWhichNoneCanAreListed) {
  EXPECT_EQ(ChosenAmong("loopback|shm", "", wire::Op::kBroadcast),
            "broadcast 'a': none of the backends 'loopback|shm' runs broadcast of float32 on cpu tensors with 2 ranks. "
            "Backends here: loopback, shm, mpi.");
}

TEST(Selector, TellsWhichBackendsACallAllows) {
  for (const char* named : {"", "nccl", "nccl/twolevel", "shm|nccl", "nccl|shm", "mpi/ring| nccl /x"}) {
    EXPECT_TRUE(Allows(named, "nccl")) << named;
  }
  for (const char* named : {"shm", "nccl2", "shm/nccl", "shm|mpi", "|", "shm|", "cc|nc"}) {
    EXPECT_FALSE(Allows(named, "nccl")) << named;
  }
}

// ---- hosts, tables, element types

TEST(Selector, RulesMayNameTheNumberOfHosts) {
  const auto chosen = [](control::SetSize size) {
    const auto selector = Selector::Parse(Backends(), size, "allreduce,2hosts,4ranks=mpi; allreduce,3-hosts=mpi/ring");
    EXPECT_TRUE(selector.ok()) << selector.status().message();
    return Chosen(*selector, Tensor("a"));
  };
  EXPECT_EQ(chosen({4, 1}), "shm/0@1");
  EXPECT_EQ(chosen({4, 2}), "mpi/0@2");
  EXPECT_EQ(chosen({5, 2}), "shm/0@1");
  EXPECT_EQ(chosen({8, 3}), "mpi/1@2");
  EXPECT_EQ(Selector::Parse(Backends(), {4, 2}, "*,2-3hosts,4-ranks:0-1k=mpi")
                ->ToString()
                .find("*,4-ranks,2-3hosts:0-1024=mpi/default\n"),
            0u);
  for (const char* term : {"hosts", "0x2hosts", "-hosts", "3-2hosts", "1-2-3hosts", "-1hosts"}) {
    EXPECT_NE(Error(std::string("allreduce,") + term + "=shm").find("is not a number of hosts; write 4hosts"),
              std::string::npos)
        << term;
  }
}

TEST(Selector, TheRulesOfATableComeAfterAllOthers) {
  const auto selector = Selector::Parse(Backends(), {2}, "allreduce:0-1k=shm", "allreduce=mpi/ring;allgather=mpi");
  ASSERT_TRUE(selector.ok());
  EXPECT_EQ(Chosen(*selector, Tensor("a"), 10), "shm/0@1");
  EXPECT_EQ(Chosen(*selector, Tensor("a"), 2000), "mpi/1@2");
  EXPECT_EQ(Chosen(*selector, OfOp(wire::Op::kAllgather, "a")), "mpi/0@2");
}

TEST(Selector, RulesOfATableForWhatIsNotHereAreLeftOut) {
  const auto selector = Selector::Parse(
      Backends(), {2}, "", "allreduce=nccl;allreduce=mpi/fancy;broadcast=shm;*=gone/x; ;allreduce=mpi/ring");
  ASSERT_TRUE(selector.ok()) << selector.status().message();
  EXPECT_EQ(selector->ToString().substr(0, selector->ToString().find('\n')), "allreduce=mpi/ring");
}

TEST(Selector, MistakesInATableAreErrorsThatNameTheTable) {
  for (const char* wrong : {"allreduce", "allreduc=shm", "allreduce,float15=shm", "allreduce:5-4=shm",
                            "allgather:0-1k=mpi", "allreduce,0-hosts,xranks=shm"}) {
    const auto selector = Selector::Parse(Backends(), {2}, "", std::string("*=shm;") + wrong);
    ASSERT_FALSE(selector.ok()) << wrong;
    EXPECT_EQ(selector.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(selector.status().message().find("the tuning table: rule '" + std::string(wrong) + "': "), 0u)
        << selector.status().message();
  }
}

TEST(Selector, ANewTableReplacesTheOldOneOnly) {
  Selector selector = Selector::Parse(Backends(), {2}, "allreduce:0-10=mpi", "allreduce=mpi/ring").value();
  ASSERT_TRUE(selector.SetTable("allreduce=shm/oneshot").ok());
  EXPECT_EQ(Chosen(selector, Tensor("a"), 1), "mpi/0@2");
  EXPECT_EQ(Chosen(selector, Tensor("a"), 100), "shm/1@1");
  EXPECT_EQ(selector.Hash(), Selector::Parse(Backends(), {2}, "allreduce:0-10=mpi", "allreduce=shm/oneshot")->Hash());
  ASSERT_TRUE(selector.SetTable("").ok());
  EXPECT_EQ(selector.Hash(), Make(2, "allreduce:0-10=mpi").Hash());
}

TEST(Selector, AfterAMistakeTheOldTableHolds) {
  Selector selector = Selector::Parse(Backends(), {2}, "", "allreduce=mpi/ring").value();
  const uint64_t before = selector.Hash();
  EXPECT_EQ(selector.SetTable("allreduce=shm;allreduce:9-1=shm").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(selector.Hash(), before);
  EXPECT_EQ(Chosen(selector, Tensor("a")), "mpi/1@2");
}

TEST(Selector, ABackendMayLackElementTypes) {
  std::vector<BackendTraits> backends = Backends();
  backends[1].reduced_dtypes = 1u << static_cast<int>(DType::kFloat32);
  const auto chosen = [&](const wire::Signature& signature) {
    return Chosen(Selector::Parse(backends, {2}, "allreduce=shm/oneshot").value(), signature);
  };
  EXPECT_EQ(chosen(Tensor("a")), "shm/1@1");
  EXPECT_EQ(chosen(Tensor("a", {4}, DType::kFloat64)), "mpi/0@2");
  wire::Signature mixed = Group("g", {"x", "y"});
  mixed.tensors[1].dtype = DType::kInt8;
  EXPECT_EQ(chosen(mixed), "mpi/0@2") << "it runs all tensors of a group, or none";
  wire::Signature named = Tensor("a", {4}, DType::kFloat64);
  named.backend = "shm";
  EXPECT_NE(chosen(named).find("backend 'shm' does not run allreduce of float64"), std::string::npos) << chosen(named);
}

TEST(Selector, ABackendMayMoveTypesThatItDoesNotReduce) {
  std::vector<BackendTraits> backends = Backends();
  backends[1].reduced_dtypes = 1u << static_cast<int>(DType::kFloat32);
  wire::Signature rows = Tensor("a", {4}, DType::kFloat64);
  rows.op = wire::Op::kAllgather;
  EXPECT_EQ(Chosen(Selector::Parse(backends, {2}, "").value(), rows), "shm/0@1");
  backends[1].moved_dtypes = backends[1].reduced_dtypes;
  EXPECT_EQ(Chosen(Selector::Parse(backends, {2}, "").value(), rows), "mpi/0@2");
}

TEST(Selector, ARuleOfATableIsLeftOutWhereItsBackendCannotRunTheOperation) {
  Selector selector = Selector::Parse(Backends(), {2}, "", "allreduce=mpi/ring").value();
  const auto asks = [](const wire::Signature& signature, uint8_t backend, uint8_t algorithm) {
    EXPECT_EQ(std::pair(backend, algorithm), std::pair(uint8_t{2}, uint8_t{1}));
    return signature.reduce_op != wire::ReduceOp::kProduct;
  };
  selector.AskBackends(asks);
  wire::Signature product = Tensor("a");
  product.reduce_op = wire::ReduceOp::kProduct;
  EXPECT_EQ(Chosen(selector, Tensor("a")), "mpi/1@2");
  EXPECT_EQ(Chosen(selector, product), "shm/0@1");
  Selector of_user = Selector::Parse(Backends(), {2}, "allreduce=mpi/ring").value();
  of_user.AskBackends(asks);
  EXPECT_EQ(Chosen(of_user, product), "mpi/1@2") << "a user's rule is an error where it cannot be followed";
}

TEST(Selector, RulesMayNameBackendsThatComeLater) {
  const auto parse = [](const std::string& rules, bool open) {
    const auto made = Selector::Parse(Backends(), {2}, rules, "", "", open);
    return made.ok() ? std::string("ok") : made.status().message();
  };
  for (const char* rule : {"allreduce=own", "allreduce:0-1k=own/fast", "*=own;allreduce=shm"}) {
    EXPECT_EQ(parse(rule, true), "ok") << rule;
    EXPECT_NE(parse(rule, false).find("there is no backend 'own'"), std::string::npos) << rule;
  }
  for (const char* wrong : {"allreduce=shn", "allreduse=own", "allreduce:9-1=own", "allreduce", "allreduce=", "=own",
                            "allreduce=shm/none"}) {
    EXPECT_NE(parse(wrong, true), "ok") << wrong;
  }
  Selector open = Selector::Parse(Backends(), {2}, "allreduce=own;allreduce=mpi", "", "", true).value();
  EXPECT_EQ(Chosen(open, Tensor("a")), "mpi/0@2");
}

TEST(Selector, ListsTheOperationsOfABackend) {
  EXPECT_EQ(OperationsOf(Backends()[1]), (std::vector<std::string>{"allreduce", "allgather"}));
  EXPECT_EQ(OperationsOf(Backends()[0]).size(), static_cast<size_t>(wire::kNumOps));
  EXPECT_TRUE(OperationsOf({}).empty());
}

TEST(Selector, AnOperationWithoutABackendIsAnErrorThatListsTheBackends) {
  wire::Signature signature = Tensor("a");
  signature.device_class = wire::DeviceClass::kCuda;
  const auto choice = Make(2, "").Choose(signature, 4);
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      choice.status().message(),
      "allreduce 'a': no backend runs allreduce of float32 on cuda tensors with 2 ranks. Backends here: loopback, shm, "
      "mpi.");
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
  const auto hash = [](SetSize size, const std::string& rules, const std::string& table) {
    return Selector::Parse(Backends(), size, rules, table)->Hash();
  };
  EXPECT_NE(hash({2, 1}, "", ""), hash({2, 2}, "", "")) << "hosts";
  EXPECT_NE(hash({2}, "*=mpi", ""), hash({2}, "", "*=mpi")) << "logs show what has chosen";
  EXPECT_NE(hash({2}, "*,2hosts=mpi", ""), hash({2}, "*,3hosts=mpi", ""));
  others = Backends();
  others[2].reduced_dtypes = 1;
  EXPECT_NE(Make(2, "").Hash(), Selector::Parse(others, {2}, "").value().Hash());
  others = Backends();
  others[2].moved_dtypes = 1;
  EXPECT_NE(Make(2, "").Hash(), Selector::Parse(others, {2}, "").value().Hash());
}

TEST(Selector, PrintsItsTable) {
  EXPECT_EQ(Make(2, "*:1k-=mpi/ring;allgather=shm").ToString(),
            "*:1024-=mpi/ring\nallgather=shm/auto\ndefault 0=loopback\ndefault 1=shm\ndefault 2=mpi\n");
}

}  // namespace
}  // namespace horocache::control
