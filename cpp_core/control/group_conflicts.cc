#include "control/group_conflicts.h"

#include <algorithm>

#include "control/signature.h"

namespace horocache::control {

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

void GroupConflicts::Remember(const std::vector<Failed>& failed, const std::string& message, const RankSet& joined) {
  Late late;
  late.message = message;
  for (const Failed& one : failed) {
    ForEachKey(one.signature, [&](const std::string& key) { late.keys.emplace(key, late.keys.size()); });
  }
  const auto size = static_cast<size_t>(size_);
  late.owed.assign(size, std::vector<bool>(late.keys.size(), true));
  late.num_owed.assign(size, late.keys.size());
  for (const int32_t rank : joined.ToVector()) late.num_owed[static_cast<size_t>(rank)] = 0;
  for (const Failed& one : failed) {
    for (const int32_t rank : one.ranks.ToVector()) Take(&late, static_cast<size_t>(rank), one.signature);
  }
  late_.push_back(std::move(late));
  if (late_.size() > kMostRemembered) late_.pop_front();
}

// True if the rank owed a tensor of the request and had submitted none of the request's failed tensors before; it then
// owes them no longer.
bool GroupConflicts::Take(Late* late, size_t rank, const wire::Signature& signature) {
  if (late->num_owed[rank] == 0) return false;
  std::vector<bool>& owed = late->owed[rank];
  std::vector<size_t> paid;
  bool again = false;
  ForEachKey(signature, [&](const std::string& key) {
    const auto found = late->keys.find(key);
    if (found == late->keys.end()) return;
    if (owed[found->second]) {
      paid.push_back(found->second);
    } else {
      again = true;
    }
  });
  if (again) {  // a tensor submitted a second time is of the next step, and so is its whole request
    late->num_owed[rank] = 0;
    return false;
  }
  for (const size_t key : paid) owed[key] = false;
  late->num_owed[rank] -= paid.size();
  return !paid.empty();
}

bool GroupConflicts::TakeLate(int rank, const wire::Signature& signature, std::string* message) {
  bool late = false;
  for (Late& one : late_) {
    if (!Take(&one, static_cast<size_t>(rank), signature)) continue;
    *message = one.message;
    late = true;
    break;
  }
  std::erase_if(late_,
                [](const Late& one) { return std::ranges::all_of(one.num_owed, [](size_t n) { return n == 0; }); });
  return late;
}

}  // namespace horocache::control
