// Rules that choose backend, algorithm and lane of an operation from (op, dtype, device class, world, bytes). Pure
// data: equal tables give equal choices. Hash() is a part of what ranks compare in every round.
//
// Text of an override: `op[,dtype][,device][,ranks][:low-high]=backend[/algorithm]`, separated by semicolons. `*` is
// any op; a device is a device class; ranks are the world's, such as 4ranks, 2-8ranks or 16-ranks; sizes are bytes and
// take k, m, g (powers of 1024); `high` may be empty. Example: "allreduce,float16,2-8ranks:0-64k=shm;allreduce=mpi".
// Ops whose sizes differ by rank (allgather, alltoall, gather, scatter) take no size range: kInvalidArgument. A lane
// belongs to a backend and is not chosen by itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "wire/message.h"

namespace horocache::control {

// What a backend of this runtime can do, as the selector needs it. The order of backends is their index in wire::Choice
// and is equal on all ranks.
struct BackendTraits {
  std::string name;
  uint32_t ops = 0;             // bit per wire::Op
  uint32_t device_classes = 0;  // bit per wire::DeviceClass
  int min_ranks = 1;
  int max_ranks = 1 << 30;
  std::vector<std::string> algorithms;  // names; index is Choice::algorithm
  // An allreduce by its default algorithm is data::Fold over the ranks' tensors, in rank order: whoever has them can
  // make the result.
  bool plain_fold = false;
};

class Selector {
 public:
  Selector() = default;
  // `note` ends the error for a backend that there is not.
  static StatusOr<Selector> Parse(std::vector<BackendTraits> backends, int world, std::string_view overrides,
                                  std::string note = {});

  // The backend that the signature names, as backend[/algorithm]; otherwise the first rule that applies, then the first
  // backend that can. kUnsupported if no backend runs it, naming what was asked and what there is. `bytes` is ignored
  // for ops whose sizes differ by rank.
  StatusOr<wire::Choice> Choose(const wire::Signature& signature, int64_t bytes) const;
  uint64_t Hash() const;
  std::string ToString() const;  // the table, one rule a line
  const std::vector<BackendTraits>& backends() const { return backends_; }

 private:
  struct Rule {
    int op = -1;  // -1: any; dtype and device alike
    int dtype = -1, device = -1;
    int64_t min_ranks = 1, max_ranks = -1;  // of the world; max_ranks < 0: no limit
    int64_t low = 0, high = -1;             // bytes, [low, high); high < 0: no limit
    uint8_t backend = 0, algorithm = 0;
  };
  // `text` is backend[/algorithm]; returns what is wrong with it, empty if nothing is.
  std::string ParseTarget(std::string_view text, Rule* parsed) const;
  StatusOr<Rule> ParseRule(std::string_view rule) const;
  static Status ParseTerm(std::string_view rule, std::string_view term, Rule* parsed);
  bool Applies(const Rule& rule, const wire::Signature& signature, int64_t bytes) const;
  Status Unsupported(const wire::Signature& signature) const;

  std::vector<BackendTraits> backends_;
  std::vector<Rule> rules_;
  std::string note_;
  int world_ = 1;
};

}  // namespace horocache::control
