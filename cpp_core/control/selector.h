// Rules that choose the backend and algorithm of an operation from its op, dtype, device class, number of ranks and
// hosts, and bytes. Pure data: equal tables make equal choices. Ranks compare Hash(), together with the cache hash, in
// every round.
//
// Syntax of a rule: `op[,dtype][,device][,ranks][,hosts][:low-high]=backend[/algorithm]`, separated by semicolons. `*`
// is any op. A device is a device class. Ranks are the number of ranks in the process set, such as 4ranks, 2-8ranks or
// 16-ranks, and hosts that of their hosts, such as 1hosts. Sizes are bytes and take k, m, g (powers of 1024); `high`
// may be empty. Example: "allreduce,float16,2-8ranks:0-64k=shm;allreduce=mpi". Ops whose sizes differ by rank
// (allgather, alltoall, gather, scatter) take no size range: kInvalidArgument.
//
// The rules that a user or a program gives come first; those of a tuning table follow. The rules of a table are advice:
// one for a backend or an algorithm that is not here is left out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "wire/message.h"

namespace horocache::control {

// The capabilities of a backend, as far as the selector needs them. A backend's index in the list is its number in
// wire::Choice; the order is equal on all ranks.
struct BackendTraits {
  std::string name;
  uint32_t ops = 0;             // bit per wire::Op
  uint32_t device_classes = 0;  // bit per wire::DeviceClass
  int min_ranks = 1;
  int max_ranks = 1 << 30;
  std::vector<std::string> algorithms;  // names; index is Choice::algorithm
  // True if an allreduce by the default algorithm is data::Fold over the ranks' tensors, in rank order, so that any
  // rank that has all ranks' tensors can compute the result by itself.
  bool plain_fold = false;
  uint32_t moved_dtypes = ~0u, reduced_dtypes = ~0u;  // bit per DType: of operations without a reduction, and with one
};

std::vector<std::string> OperationsOf(const BackendTraits& backend);

// True if a call that names these backends (wire::Signature::backend) lets `backend` run its operation.
bool Allows(std::string_view named, std::string_view backend);

// The ranks of a process set, and their hosts.
struct SetSize {
  int ranks = 1;
  int hosts = 1;
};

class Selector {
 public:
  Selector() = default;
  // `rules` are the user's and those of programs, `table` those of a tuning table. `note` is appended to the error for
  // an unknown backend. `open`: there may be other backends; rules for these are left out.
  static StatusOr<Selector> Parse(std::vector<BackendTraits> backends, SetSize size, std::string_view rules,
                                  std::string_view table = {}, std::string note = {}, bool open = false);

  // Chooses the backend that the signature names, as backend[/algorithm]. The signature may name several, separated by
  // `|`: the candidates are these, or all if it names none, as far as they can run the operation. The first rule that
  // applies and has one of them decides; without such a rule it is the first candidate. An algorithm that the signature
  // names is kept: a rule with another one does not apply, and a rule without one gets it.
  // kUnsupported if a name is unknown or there is no candidate; the error names the request and the known backends.
  // `bytes` is ignored for ops whose sizes differ by rank.
  StatusOr<wire::Choice> Choose(const wire::Signature& signature, int64_t bytes) const;
  uint64_t Hash() const;
  std::string ToString() const;  // the table, one rule a line
  const std::vector<BackendTraits>& backends() const { return backends_; }
  // Replaces the rules of the tuning table; after an error all rules are as before.
  Status SetTable(std::string_view table);
  // Whether a backend can run an operation by an algorithm, beyond what its traits say: a rule of the table is taken
  // only then. Only rank 0 of a set asks.
  using Supports = std::function<bool(const wire::Signature& signature, uint8_t backend, uint8_t algorithm)>;
  void AskBackends(Supports supports) { supports_ = std::move(supports); }

 private:
  struct Target {
    uint8_t backend = 0, algorithm = 0;
  };
  struct Rule {
    int op = -1;  // -1: any, as for dtype and device
    int dtype = -1, device = -1;
    int64_t min_ranks = 1, max_ranks = -1;  // number of ranks; max_ranks < 0: no limit
    int64_t min_hosts = 1, max_hosts = -1;
    int64_t low = 0, high = -1;  // bytes, [low, high); high < 0: no limit
    Target target;
    wire::ChosenBy kind = wire::ChosenBy::kRule;
  };
  // Parses backend[/algorithm]. Returns the error text; empty if the text is valid.
  std::string ParseTarget(std::string_view text, Target* target) const;
  // Parses what is left of the equals sign.
  static Status ParseCondition(std::string_view text, Rule* parsed);
  static Status ParseTerm(std::string_view term, Rule* parsed);
  StatusOr<Rule> ParseRule(std::string_view rule) const;
  bool MayBeElsewhere(std::string_view rule) const;
  Status AddRules(std::string_view rules, wire::ChosenBy kind, std::vector<Rule>* out) const;
  // The targets that the signature names, in its order; the error text goes to *wrong.
  std::vector<Target> Asked(const wire::Signature& signature, std::string* wrong) const;
  bool Can(const Target& target, const wire::Signature& signature) const;
  // The target of the rule among the candidates; none if the rule does not fit.
  static std::optional<Target> Pick(const Target& rule, const std::vector<Target>& candidates);
  // True if the rule is for process sets of this size.
  bool IsForThisSet(const Rule& rule) const;
  bool Applies(const Rule& rule, const wire::Signature& signature, int64_t bytes) const;
  Status Unsupported(const wire::Signature& signature) const;

  std::vector<BackendTraits> backends_;
  std::vector<Rule> rules_;  // those of a table last
  Supports supports_;        // null: all that the traits allow
  std::string note_;
  bool open_ = false;
  SetSize size_;
};

}  // namespace horocache::control
