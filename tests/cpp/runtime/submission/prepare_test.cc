// The checks of memory that the caller gives for results of operations on rows.
#include "runtime/submission/prepare.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace horocache::runtime {
namespace {

// An operation whose tensors and results are ranges of one block of memory, in bytes.
class RowsOperation {
 public:
  explicit RowsOperation(wire::Op op = wire::Op::kAllgather) {
    operation_.request.signature.op = op;
    operation_.request.signature.name = "a";
  }

  RowsOperation& Add(int input, int64_t count, int output, int64_t output_count) {
    const std::string name = "t" + std::to_string(operation_.tensors.size());
    operation_.request.signature.tensors.push_back({name, DType::kInt8, {count}});
    TensorArgument tensor;
    if (input >= 0) tensor.input = block_ + input;
    if (output >= 0) tensor.output = block_ + output;
    tensor.count = count;
    tensor.output_count = output_count;
    operation_.tensors.push_back(tensor);
    return *this;
  }
  Operation& operation() { return operation_; }
  std::string Wrong(bool receives = true) const {
    const Status status = CheckResults(operation_, receives);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << status.ToString();
    return status.message();
  }

 private:
  static inline std::byte block_[256];
  Operation operation_;
};

TEST(CheckResults, MemoryThatIsApartIsFine) {
  EXPECT_EQ(RowsOperation().Add(0, 10, 20, 40).Wrong(), "");
  EXPECT_EQ(RowsOperation().Add(0, 10, 10, 10).Wrong(), "") << "they touch";
  EXPECT_EQ(RowsOperation().Add(10, 10, 0, 10).Wrong(), "");
  EXPECT_EQ(RowsOperation().Add(0, 10, 20, 10).Add(30, 10, 40, 10).Add(0, 10, 50, 10).Wrong(), "")
      << "inputs may be one memory";
}

TEST(CheckResults, AResultInTheMemoryOfATensorIsAnErrorThatNamesIt) {
  const std::string inside = "allgather 'a' stores a result in the memory of tensor 't0'; give it a copy";
  EXPECT_EQ(RowsOperation().Add(0, 10, 0, 10).Wrong(), inside);
  EXPECT_EQ(RowsOperation().Add(0, 10, 9, 1).Wrong(), inside);
  EXPECT_EQ(RowsOperation().Add(9, 10, 0, 10).Wrong(), inside);
  EXPECT_EQ(RowsOperation().Add(4, 1, 0, 10).Wrong(), inside) << "the result holds the tensor";
  EXPECT_EQ(RowsOperation().Add(0, 10, 4, 1).Wrong(), inside) << "the tensor holds the result";
  EXPECT_NE(RowsOperation().Add(0, 5, 10, 5).Add(12, 1, 30, 5).Wrong().find("of tensor 't1'"), std::string::npos);
}

TEST(CheckResults, ResultsThatShareMemoryAreAnErrorThatNamesBoth) {
  EXPECT_EQ(RowsOperation().Add(0, 5, 100, 10).Add(5, 5, 50, 10).Add(10, 5, 109, 1).Wrong(),
            "allgather 'a' has results of tensors 't0' and 't2' that share memory; give each its own");
}

TEST(CheckResults, MemoryOfNoBytesIsApartFromEverything) {
  EXPECT_EQ(RowsOperation().Add(0, 10, 5, 0).Wrong(), "") << "a result without rows, within the tensor";
  EXPECT_EQ(RowsOperation().Add(5, 0, 0, 10).Wrong(), "");
  EXPECT_EQ(RowsOperation().Add(0, 5, 20, 10).Add(5, 5, 25, 0).Wrong(), "");
  EXPECT_EQ(RowsOperation().Add(-1, 0, -1, 0).Wrong(), "");
}

TEST(CheckResults, ARankThatGetsAResultNeedsMemoryForIt) {
  EXPECT_EQ(RowsOperation().Add(0, 10, -1, 5).Wrong(), "allgather 'a' has no memory for the result of tensor 't0'");
  EXPECT_EQ(RowsOperation(wire::Op::kGather).Add(0, 10, -1, 5).Wrong(/*receives=*/false), "");
}

TEST(CheckResults, OtherOperationsAndAllocatedResultsAreNotLookedAt) {
  EXPECT_EQ(RowsOperation(wire::Op::kAllreduce).Add(0, 10, 0, 10).Wrong(), "");
  RowsOperation allocated;
  allocated.Add(0, 10, 0, 10).operation().allocate_results = true;
  EXPECT_EQ(allocated.Wrong(), "");
}

TEST(CheckResults, TensorsOfADeviceAreUnsupported) {
  RowsOperation cuda;
  cuda.Add(0, 10, 20, 10).operation().request.signature.device_class = wire::DeviceClass::kCuda;
  const Status status = CheckResults(cuda.operation(), true);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("in a given tensor of a GPU; leave the output away"), std::string::npos);
}

// Against the definition: two ranges share memory if they have a byte in common.
TEST(CheckResults, RandomRangesAreJudgedAsByTheirBytes) {
  std::mt19937 random(7);
  int wrong = 0;
  for (int round = 0; round < 20'000; ++round) {
    RowsOperation rows;
    std::vector<int> results(256), inputs(256);
    const int tensors = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < tensors; ++i) {
      const int input = static_cast<int>(random() % 200), output = static_cast<int>(random() % 200);
      const int count = static_cast<int>(random() % 20), output_count = static_cast<int>(random() % 20);
      rows.Add(input, count, output, output_count);
      for (int at = input; at < input + count; ++at) inputs[static_cast<size_t>(at)] = 1;
      for (int at = output; at < output + output_count; ++at) ++results[static_cast<size_t>(at)];
    }
    bool shared = false;
    for (size_t at = 0; at < 256; ++at) shared |= results[at] + inputs[at] > 1 && results[at] > 0;
    EXPECT_EQ(rows.Wrong().empty(), !shared) << "round " << round;
    wrong += shared;
  }
  EXPECT_GT(wrong, 1000);
}

TEST(SetOutput, OperationsOnRowsTakeAnyNumberOfElements) {
  for (const wire::Op op : {wire::Op::kAllgather, wire::Op::kReducescatter, wire::Op::kAllreduce}) {
    RowsOperation rows(op);
    Operation& operation = rows.Add(0, 10, -1, 0).operation();
    std::byte memory[4];
    const Status status = SetOutput(0, DType::kInt8, 4, memory, &operation);
    EXPECT_EQ(status.ok(), op != wire::Op::kAllreduce) << wire::OpName(op);
    EXPECT_EQ(operation.tensors[0].output_count, status.ok() ? 4 : 0);
    EXPECT_EQ(SetOutput(0, DType::kInt16, 10, memory, &operation).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace horocache::runtime
