#include "control/group_conflicts.h"

#include <algorithm>

#include "control/signature.h"

namespace horocache::control {
namespace {

bool ShareKey(const wire::Signature& a, const wire::Signature& b) {
  bool shared = false;
  ForEachKey(a,
             [&](const std::string& key) { ForEachKey(b, [&](const std::string& other) { shared |= key == other; }); });
  return shared;
}

}  // namespace

void GroupConflicts::Add(const wire::Signature& signature) {
  ForEachKey(signature, [&](const std::string& key) { name_of_key_.emplace(key, signature.name); });
}

void GroupConflicts::Remove(const wire::Signature& signature) {
  ForEachKey(signature, [&](const std::string& key) {
    const auto found = name_of_key_.find(key);
    if (found != name_of_key_.end() && found->second == signature.name) name_of_key_.erase(found);
  });
}

std::vector<std::string> GroupConflicts::Find(const wire::Signature& signature, std::string* key) const {
  std::vector<std::string> names;
  ForEachKey(signature, [&](const std::string& own) {
    const auto found = name_of_key_.find(own);
    if (found == name_of_key_.end() || found->second == signature.name) return;
    if (names.empty()) *key = own;
    if (std::ranges::find(names, found->second) == names.end()) names.push_back(found->second);
  });
  return names;
}

void GroupConflicts::Remember(std::vector<wire::Signature> signatures, const std::string& message,
                              const RankSet& told) {
  Late late;
  late.message = message;
  late.names_of_rank.resize(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    if (told.Has(rank)) continue;
    for (const wire::Signature& signature : signatures) {
      late.names_of_rank[static_cast<size_t>(rank)].push_back(signature.name);
    }
  }
  late.signatures = std::move(signatures);
  late_.push_back(std::move(late));
  if (late_.size() > kMostRemembered) late_.pop_front();
}

bool GroupConflicts::TakeLate(int rank, const wire::Signature& signature, std::string* message) {
  for (auto late = late_.begin(); late != late_.end(); ++late) {
    std::vector<std::string>& names = late->names_of_rank[static_cast<size_t>(rank)];
    if (std::ranges::find(names, signature.name) == names.end()) continue;
    *message = late->message;
    // This rank has now said in which company it submits these tensors: the other ways are its next step's.
    for (const wire::Signature& other : late->signatures) {
      if (ShareKey(other, signature)) std::erase(names, other.name);
    }
    const auto done = [](const std::vector<std::string>& left) { return left.empty(); };
    if (std::ranges::all_of(late->names_of_rank, done)) late_.erase(late);
    return true;
  }
  return false;
}

}  // namespace horocache::control
