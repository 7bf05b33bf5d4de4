#include "control/mismatch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <unordered_set>

#include "base/text.h"
#include "control/signature.h"

namespace horocache::control {
namespace {

using wire::Signature;
using wire::TensorMeta;

std::string NumberText(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string DivideByText(wire::DivideBy divide_by) { return std::string(wire::DivideByName(divide_by)); }

// Two ranks and the subject on which they disagree; writes the sentence.
struct Pair {
  std::string subject;
  int rank_a, rank_b;

  std::string Say(const std::string& what, const std::string& a, const std::string& b, const std::string& todo) const {
    const std::string space = what.empty() ? "" : what + " ";
    return subject + ": rank " + std::to_string(rank_a) + " submitted " + space + a + ", rank " +
           std::to_string(rank_b) + " submitted " + space + b + ". " + todo;
  }
  std::string Same(const std::string& what, const std::string& a, const std::string& b) const {
    return Say(what, a, b, "Submit the same " + what + " on all ranks.");
  }
  std::string Text(const std::string& what, const std::string& a, const std::string& b) const {
    return Same(what, "'" + Printable(a) + "'", "'" + Printable(b) + "'");
  }
};

// The first member of `from` whose name no member of `other` has; nullptr if there is none.
const std::string* FirstLacking(const Signature& from, const Signature& other) {
  std::unordered_set<std::string_view> there;
  for (const TensorMeta& tensor : other.tensors) there.insert(tensor.name);
  const auto found = std::ranges::find_if(from.tensors, [&](const TensorMeta& t) { return !there.contains(t.name); });
  return found == from.tensors.end() ? nullptr : &found->name;
}

// The tensors that each rank's group lacks. Empty if the groups have no name in common: names made from positions tell
// the user nothing.
std::string LackText(const Pair& pair, const Signature& a, const Signature& b) {
  std::unordered_set<std::string_view> names;
  for (const TensorMeta& tensor : a.tensors) names.insert(tensor.name);
  if (std::ranges::none_of(b.tensors, [&](const TensorMeta& t) { return names.contains(t.name); })) return {};
  std::string text;
  const auto add = [&](int rank, const std::string* lacking) {
    if (lacking == nullptr) return;
    text += "Rank " + std::to_string(rank) + "'s group lacks '" + Printable(*lacking) + "'. ";
  };
  add(pair.rank_b, FirstLacking(a, b));
  add(pair.rank_a, FirstLacking(b, a));
  return text;
}

std::string MemberDifference(const Pair& pair, const Signature& a, const Signature& b) {
  const auto count = [](const Signature& s) {
    return std::to_string(s.tensors.size()) + (s.tensors.size() == 1 ? " tensor" : " tensors");
  };
  const auto todo = [&] {
    return LackText(pair, a, b) + "A group must have the same members, in the same order, on all ranks.";
  };
  if (a.tensors.size() != b.tensors.size()) return pair.Say("", count(a), count(b), todo());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].name == b.tensors[i].name) continue;
    return pair.Say("as member " + std::to_string(i), "'" + Printable(a.tensors[i].name) + "'",
                    "'" + Printable(b.tensors[i].name) + "'", todo());
  }
  return {};
}

std::string TensorDifference(Pair pair, const Signature& signature, const TensorMeta& a, const TensorMeta& b) {
  if (a.name != signature.name) pair.subject += ", tensor '" + Printable(a.name) + "'";
  if (a.dtype != b.dtype) return pair.Same("dtype", std::string(DTypeName(a.dtype)), std::string(DTypeName(b.dtype)));
  if (a.shape != b.shape) {
    if (!wire::SizesDiffer(signature.op)) return pair.Same("shape", ShapeText(a.shape), ShapeText(b.shape));
    return pair.Say("shape", ShapeText(a.shape), ShapeText(b.shape),
                    "Only the first dimension may differ between ranks (*).");
  }
  return {};
}

// Compares the ranks of a proposed process set, which the proposal carries as a shape; see Note [Process sets at run
// time].
std::string ProposalDifference(const Pair& pair, const Signature& a, const Signature& b) {
  const auto ranks = [](const Signature& s) {
    return s.tensors.empty() ? std::string("[]") : ShapeText(s.tensors.front().shape);
  };
  if (ranks(a) == ranks(b)) return {};
  return pair.Say("the ranks", ranks(a), ranks(b),
                  "Add the same process sets on all ranks of the job, in the same order.");
}

}  // namespace

std::string MembersText(const Signature& a, int rank_a, const Signature& b, int rank_b, const RankNames& names) {
  return IsGroup(a) && IsGroup(b) ? LackText({"", names.Of(rank_a), names.Of(rank_b)}, a, b) : std::string();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += shape[i] == -1 ? "*" : std::to_string(shape[i]);
  }
  return text + "]";
}

std::string Difference(const Signature& a, int rank_a, const Signature& b, int rank_b, const RankNames& names) {
  const Pair pair{Describe(a) + names.OfSet(), names.Of(rank_a), names.Of(rank_b)};
  if (a.op != b.op) {
    const Pair named{"'" + Printable(a.name) + "'" + names.OfSet(), pair.rank_a, pair.rank_b};
    return named.Same("operation", std::string(OpName(a.op)), std::string(OpName(b.op)));
  }
  if (a.op == wire::Op::kRegister) return ProposalDifference(pair, a, b);
  if (std::string text = MemberDifference(pair, a, b); !text.empty()) return text;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (std::string text = TensorDifference(pair, a, a.tensors[i], b.tensors[i]); !text.empty()) return text;
  }
  if (a.reduce_op != b.reduce_op) {
    return pair.Same("reduce op", std::string(ReduceOpName(a.reduce_op)), std::string(ReduceOpName(b.reduce_op)));
  }
  if (a.root != b.root) {
    return pair.Same("root", std::to_string(names.Of(a.root)), std::to_string(names.Of(b.root)));
  }
  if (a.divide_by != b.divide_by) return pair.Text("divide_by", DivideByText(a.divide_by), DivideByText(b.divide_by));
  if (a.prescale != b.prescale) return pair.Same("prescale factor", NumberText(a.prescale), NumberText(b.prescale));
  if (a.postscale != b.postscale) {
    return pair.Same("postscale factor", NumberText(a.postscale), NumberText(b.postscale));
  }
  if (a.device_class != b.device_class) {
    return pair.Same("device class", std::string(DeviceClassName(a.device_class)),
                     std::string(DeviceClassName(b.device_class)));
  }
  if (a.priority != b.priority) {
    return pair.Same("priority", std::to_string(a.priority), std::to_string(b.priority));
  }
  if (a.layers != b.layers) return pair.Text("list of layers", a.layers, b.layers);
  if (a.backend != b.backend) return pair.Text("backend", a.backend, b.backend);
  return {};
}

}  // namespace horocache::control
