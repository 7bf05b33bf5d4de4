// N runtimes in one process, with one thread per rank, over an arena on the heap.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "runtime/runtime.h"

namespace horocache::runtime {

using Texts = std::map<std::string, std::string>;

inline constexpr int64_t kPatienceNs = 60 * kNsPerS;

// Starts `size` runtimes with process sets, runs `body(rank, runtime)` for each on its own thread, and stops them.
inline void RunRanks(int size, const Texts& arguments, const std::function<void(int, Runtime&)>& body,
                     const std::vector<std::vector<int>>& sets = {}, const std::string& job = "test") {
  const auto knobs = Knobs::Parse({}, arguments);
  ASSERT_TRUE(knobs.ok()) << knobs.status().ToString();
  const auto arena = net::Arena::CreateOnHeap(LayoutFor(*knobs, size));
  std::vector<std::shared_ptr<net::Arena>> set_arenas;
  for (const std::vector<int>& ranks : sets) {
    set_arenas.push_back(net::Arena::CreateOnHeap(LayoutFor(*knobs, static_cast<int>(ranks.size()))));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const net::Identity identity{rank, size, rank, size, 0, 1, job, "none"};
      auto runtime = Runtime::Start({*knobs, identity, 0, "test", arena, sets, set_arenas});
      ASSERT_TRUE(runtime.ok()) << runtime.status().ToString();
      body(rank, **runtime);
      (*runtime)->Stop();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline Operation* Allreduce(Runtime& runtime, const std::string& name, std::vector<float>* tensor) {
  Operation* operation = runtime.NewOperation();
  wire::Signature& signature = operation->request.signature;
  signature = {};
  signature.op = wire::Op::kAllreduce;
  signature.reduce_op = wire::ReduceOp::kSum;
  signature.name = name;
  const auto count = static_cast<int64_t>(tensor->size());
  signature.tensors = {{name, DType::kFloat32, {count}}};
  auto* bytes = reinterpret_cast<std::byte*>(tensor->data());
  operation->tensors = {{bytes, bytes, count, count}};
  return operation;
}

// A send to, or recv from, another rank.
inline Operation* Message(Runtime& runtime, wire::Op op, int peer, int32_t tag, std::vector<float>* tensor) {
  Operation* operation = runtime.NewOperation();
  wire::Signature& signature = operation->request.signature;
  signature = {};
  signature.op = op;
  signature.root = peer;
  const auto count = static_cast<int64_t>(tensor->size());
  signature.tensors = {{"", DType::kFloat32, {count}}};
  auto* bytes = reinterpret_cast<std::byte*>(tensor->data());
  operation->tensors = {{bytes, bytes, count, count}};
  operation->process_set = 0;
  operation->tag = tag;
  return operation;
}

inline Status Finish(Runtime& runtime, Operation* operation) {
  if (!runtime.Wait(operation, NowNs() + kPatienceNs, WaitKind::kForGood)) {
    return {StatusCode::kInternal, "never finished"};
  }
  Status status = operation->status;
  runtime.Recycle(operation);
  return status;
}

}  // namespace horocache::runtime
