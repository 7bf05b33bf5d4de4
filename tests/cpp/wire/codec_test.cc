#include "wire/codec.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace horocache::wire {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

Signature SomeSignature() {
  Signature signature;
  signature.op = Op::kBroadcast;
  signature.reduce_op = ReduceOp::kXor;
  signature.device_class = DeviceClass::kFake;
  signature.root = 3;
  signature.priority = std::numeric_limits<int32_t>::min();
  signature.prescale = 0.1;
  signature.postscale = -2.5e300;
  signature.layers = "compression=fp16";
  signature.backend = "shm";
  signature.name = std::string("gr\0up\n\"\xff", 8);
  signature.tensors = {{"a", DType::kBool, {}}, {"b", DType::kComplex128, {-1, 0, int64_t{1} << 62}}};
  signature.defect = "3 NaN";
  signature.input_failed = true;
  return signature;
}

RequestList SomeRequests() {
  RequestList list;
  list.process_set = 7;
  list.epoch = ~0u;
  list.round = ~uint64_t{0};
  list.rank = 1023;
  list.leaving = true;
  list.all_waiting = true;
  list.computes = true;
  list.error = "why";
  list.requests = {{SomeSignature(), 17}, {Signature{}, kNoBit}};
  list.stalled_bits = {1, 300, 1 << 20};
  list.pending_bits = {2};
  list.note = "here";
  list.last_done = "z";
  list.cache_hash = {~uint64_t{0}};
  return list;
}

ResponseList SomeResponses() {
  ResponseList list;
  list.process_set = 7;
  list.epoch = 5;
  list.round = 1;
  list.erase = {3, 1};
  Response response;
  response.signature = SomeSignature();
  response.choice = {1, 2, 65535, ChosenBy::kTable};
  response.code = StatusCode::kMismatch;
  response.message = "no";
  response.last_joined = -1;
  response.ranks = {0, 2};
  list.responses = {response, Response{}};
  list.joined = {4};
  list.divide_by = DivideBy::kActive;
  list.left = {5, 6};
  list.report = "slow";
  list.late_ranks = {7};
  list.settings = std::string("cache=0\ntable=*=shm\nnote=\0\xff", 27);
  list.fatal = StatusCode::kAborted;
  return list;
}

TEST(Codec, EveryFieldOfARequestListSurvives) {
  std::string bytes;
  Encode(SomeRequests(), &bytes);
  const auto back = DecodeRequestList(Bytes(bytes));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, SomeRequests());
}

TEST(Codec, EveryFieldOfAResponseListSurvives) {
  std::string bytes;
  Encode(SomeResponses(), &bytes);
  const auto back = DecodeResponseList(Bytes(bytes));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, SomeResponses());
}

TEST(Codec, EncodeAppends) {
  std::string bytes = "x";
  Encode(RequestList{}, &bytes);
  EXPECT_EQ(bytes[0], 'x');
  EXPECT_TRUE(DecodeRequestList(Bytes(bytes.substr(1))).ok());
}

TEST(Codec, EveryTruncationAndEveryExtraByteIsCorrupt) {
  std::string requests, responses;
  Encode(SomeRequests(), &requests);
  Encode(SomeResponses(), &responses);
  for (size_t size = 0; size < requests.size(); ++size) {
    const auto decoded = DecodeRequestList(Bytes(requests.substr(0, size)));
    ASSERT_FALSE(decoded.ok()) << size;
    EXPECT_EQ(decoded.status().code(), StatusCode::kCorrupt);
  }
  for (size_t size = 0; size < responses.size(); ++size) {
    ASSERT_FALSE(DecodeResponseList(Bytes(responses.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(DecodeRequestList(Bytes(requests + "x")).ok());
  EXPECT_FALSE(DecodeResponseList(Bytes(responses + '\0')).ok());
}

TEST(Codec, KindMagicAndVersionAreChecked) {
  std::string bytes;
  Encode(RequestList{}, &bytes);
  EXPECT_FALSE(DecodeResponseList(Bytes(bytes)).ok());
  for (size_t i = 0; i < 4; ++i) {
    std::string wrong = bytes;
    wrong[i] = static_cast<char>(wrong[i] + 1);
    EXPECT_FALSE(DecodeRequestList(Bytes(wrong)).ok()) << i;
  }
}

TEST(Codec, ACountBeyondTheMessageAllocatesNothing) {
  std::string bytes;
  Encode(RequestList{}, &bytes);
  // process set, epoch, round, rank, two flags and an empty error follow the header; then the count of requests.
  const size_t count_at = 4 + 7;
  std::string wrong = bytes.substr(0, count_at);
  wrong += "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
  wrong += bytes.substr(count_at + 1);
  const auto decoded = DecodeRequestList(Bytes(wrong));
  ASSERT_FALSE(decoded.ok());
  EXPECT_NE(decoded.status().message().find("count exceeds"), std::string::npos) << decoded.status().ToString();
}

TEST(Codec, ANameLongerThanTheLimitIsCorrupt) {
  RequestList list;
  list.requests.resize(1);
  list.requests[0].signature.name.assign(kMaxNameBytes, 'n');
  std::string bytes;
  Encode(list, &bytes);
  EXPECT_TRUE(DecodeRequestList(Bytes(bytes)).ok());
  list.requests[0].signature.name += 'n';
  bytes.clear();
  Encode(list, &bytes);
  EXPECT_FALSE(DecodeRequestList(Bytes(bytes)).ok());
}

TEST(Codec, EnumsOutOfRangeAreCorrupt) {
  RequestList list = SomeRequests();
  list.requests[0].signature.op = static_cast<Op>(kNumOps);
  std::string bytes;
  Encode(list, &bytes);
  EXPECT_FALSE(DecodeRequestList(Bytes(bytes)).ok());
  list = SomeRequests();
  list.requests[0].signature.tensors[1].dtype = static_cast<DType>(kNumDTypes);
  bytes.clear();
  Encode(list, &bytes);
  EXPECT_FALSE(DecodeRequestList(Bytes(bytes)).ok());
}

TEST(Codec, AnUnknownReasonForAChoiceIsCorrupt) {
  ResponseList list = SomeResponses();
  list.responses[0].choice.chosen_by = static_cast<ChosenBy>(kNumChosenBys);
  std::string bytes;
  Encode(list, &bytes);
  const auto decoded = DecodeResponseList(Bytes(bytes));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(decoded.status().message().find("unknown reason for a choice"), std::string::npos);
}

TEST(Codec, LongSettingsSurvive) {
  ResponseList list;
  list.settings = "table=" + std::string(1 << 18, '*');
  std::string bytes;
  Encode(list, &bytes);
  const auto back = DecodeResponseList(Bytes(bytes));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, list);
}

// Decoding ends without a crash for any bytes. A message that decodes can be encoded, and the result decodes again. CI
// runs this test under ASan and UBSan.
TEST(Codec, MutatedMessagesNeverCrash) {
  std::string requests, responses;
  Encode(SomeRequests(), &requests);
  Encode(SomeResponses(), &responses);
  std::mt19937_64 random(20240711);
  int decoded = 0;
  for (int i = 0; i < 40000; ++i) {
    std::string bytes = i % 2 == 0 ? requests : responses;
    for (uint64_t edits = 1 + random() % 4; edits > 0 && !bytes.empty(); --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes.insert(at, "\xff\xff\xff\xff\x0f");
          break;
        default:
          bytes[at] = static_cast<char>(random());
      }
    }
    if (const auto list = DecodeRequestList(Bytes(bytes)); list.ok()) {
      ++decoded;
      std::string again;
      Encode(*list, &again);
      EXPECT_TRUE(DecodeRequestList(Bytes(again)).ok());
    }
    if (const auto list = DecodeResponseList(Bytes(bytes)); list.ok()) {
      ++decoded;
      std::string again;
      Encode(*list, &again);
      EXPECT_TRUE(DecodeResponseList(Bytes(again)).ok());
    }
  }
  EXPECT_GT(decoded, 0);
}

TEST(Codec, RandomBytesNeverDecode) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_FALSE(DecodeRequestList(Bytes(bytes)).ok());
    EXPECT_FALSE(DecodeResponseList(Bytes(bytes)).ok());
  }
}

TEST(Message, EveryEnumHasAName) {
  for (int i = 0; i < kNumOps; ++i) EXPECT_FALSE(OpName(static_cast<Op>(i)).empty());
  for (int i = 0; i < kNumReduceOps; ++i) EXPECT_FALSE(ReduceOpName(static_cast<ReduceOp>(i)).empty());
  for (int i = 0; i < kNumDeviceClasses; ++i) EXPECT_FALSE(DeviceClassName(static_cast<DeviceClass>(i)).empty());
  for (int i = 0; i < kNumChosenBys; ++i) EXPECT_FALSE(ChosenByName(static_cast<ChosenBy>(i)).empty());
  EXPECT_EQ(OpName(Op::kRecv), "recv");
  EXPECT_EQ(ChosenByName(ChosenBy::kTable), "table");
  EXPECT_EQ(ReduceOpName(ReduceOp::kXor), "xor");
}

TEST(Message, SomeOperationsWorkOnRows) {
  std::string names;
  for (int i = 0; i < kNumOps; ++i) {
    if (WorksOnRows(static_cast<Op>(i))) names += std::string(OpName(static_cast<Op>(i))) + " ";
  }
  EXPECT_EQ(names, "allgather reducescatter alltoall gather scatter ");
}

TEST(Message, ChoicesThatDifferInTheirReasonRunAlike) {
  const Choice choice{1, 2, 3, ChosenBy::kCall};
  EXPECT_TRUE(choice.RunsAs({1, 2, 3, ChosenBy::kTable}));
  EXPECT_FALSE(choice.RunsAs({0, 2, 3, ChosenBy::kCall}));
  EXPECT_FALSE(choice.RunsAs({1, 0, 3, ChosenBy::kCall}));
  EXPECT_FALSE(choice.RunsAs({1, 2, 0, ChosenBy::kCall}));
}

}  // namespace
}  // namespace horocache::wire
