// Checks that the results of inline allreduces are right.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "testing/checkers.h"
#include "testing/lives.h"

namespace horocache::testing {

namespace {

using Data = std::vector<std::byte>;

// Returns the contribution of one member, without the padding to whole words.
Data PartOf(const control::Plan& plan, size_t member, size_t members, size_t bytes) {
  const size_t words = plan.contributions.size() / members;
  Data part(words * sizeof(uint64_t));
  std::memcpy(part.data(), plan.contributions.data() + member * words, part.size());
  if (part.size() >= bytes && part.size() - bytes < sizeof(uint64_t)) part.resize(bytes);
  return part;
}

// True if `part` is the data that `member` submitted for the request that plan number `index` reduces.
bool HadSubmitted(const MemberHistory& member, const Lives& lives, size_t index, const wire::Signature& signature,
                  uint64_t step, const Data& part) {
  if (index < member.planned.size()) {
    const auto life = lives.by_op.find(member.planned[index].plan.items[0].op);
    return life != lives.by_op.end() && life->second.record->data == part;
  }
  // The member was lost before it learned of the plan.
  const auto named = lives.by_name.find(signature.name);
  if (named == lives.by_name.end()) return false;
  return std::any_of(named->second.begin(), named->second.end(), [&](control::OpId op) {
    const SubmitRecord& record = *lives.by_op.at(op).record;
    return record.step < step && *record.signature == signature && record.data == part;
  });
}

template <typename T>
Data Reduced(const std::vector<Data>& parts, wire::ReduceOp op) {
  std::vector<T> result(parts[0].size() / sizeof(T)), values(result.size());
  std::memcpy(result.data(), parts[0].data(), parts[0].size());
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    std::memcpy(values.data(), parts[rank].data(), parts[rank].size());
    for (size_t i = 0; i < values.size(); ++i) {
      result[i] = op == wire::ReduceOp::kMax ? std::max(result[i], values[i]) : result[i] + values[i];
    }
  }
  Data bytes(parts[0].size());
  std::memcpy(bytes.data(), result.data(), bytes.size());
  return bytes;
}

// Returns the error of the inline plan number `index` of `member`; empty if it is right.
std::string Wrong(const SetHistory& set, const std::vector<Lives>& lives, const MemberHistory& member, size_t index) {
  const PlanRecord& record = member.planned[index];
  const control::Plan& plan = record.plan;
  const wire::Signature& signature = *plan.items[0].signature;
  if (plan.items.size() != 1 || !plan.joined.empty())
    return "was inline with others, or without a rank that has joined";
  std::vector<Data> parts;
  for (size_t m = 0; m < set.members.size(); ++m) {
    parts.push_back(PartOf(plan, m, set.members.size(), record.result.size()));
    if (HadSubmitted(set.members[m], lives[m], index, signature, record.step, parts.back())) continue;
    return "had other data of rank " + std::to_string(set.members[m].rank) + " than that had submitted";
  }
  const bool integers = signature.tensors[0].dtype == DType::kInt64;
  const Data expected =
      integers ? Reduced<int64_t>(parts, signature.reduce_op) : Reduced<float>(parts, signature.reduce_op);
  return record.result == expected ? "" : "was reduced to something else";
}

}  // namespace

Status CheckInline(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    const SetHistory& set = history.sets[s];
    const std::vector<Lives> lives = LivesOf(set);
    for (const MemberHistory& member : set.members) {
      for (size_t i = 0; i < member.planned.size(); ++i) {
        const control::Plan& plan = member.planned[i].plan;
        if (!plan.is_inline()) continue;
        const std::string wrong = Wrong(set, lives, member, i);
        if (wrong.empty()) continue;
        return Violation(history, s, member, member.planned[i].step,
                         "plan number " + std::to_string(i) + ", " + Quoted(plan.items[0].signature->name) +
                             ", was inline in its round and " + wrong);
      }
    }
  }
  return Status::Ok();
}

}  // namespace horocache::testing
