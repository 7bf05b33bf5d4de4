#include "base/knobs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <type_traits>

#include "base/text.h"

namespace horocache {
namespace {

std::string EnvironmentName(std::string_view knob) {
  std::string name = "HOROCACHE_";
  for (const char c : knob) name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

Status Invalid(const KnobInfo& info, std::string_view text, const std::string& allowed) {
  return {StatusCode::kInvalidArgument,
          "knob " + std::string(info.name) + " (" + EnvironmentName(info.name) +
              (info.horovod_alias.empty() ? "" : " or " + std::string(info.horovod_alias)) + ") is '" +
              Printable(text) + "'; allowed: " + allowed + ". Leave it out to get the default, " +
              (info.default_value.empty() ? "none" : std::string(info.default_value)) + "."};
}

template <typename T>
Status AssignNumber(const KnobInfo& info, std::string_view text, T* value) {
  T low{}, high{};
  if (!ParseNumber(info.minimum, &low) || !ParseNumber(info.maximum, &high)) {
    return {StatusCode::kInternal, "knob " + std::string(info.name) + " is declared without a range"};
  }
  if (!ParseNumber(text, value) || !(*value >= low && *value <= high)) {
    const char* kind = std::is_same_v<T, int64_t> ? "a whole number from " : "a number from ";
    return Invalid(info, text, kind + std::string(info.minimum) + " to " + std::string(info.maximum));
  }
  return Status::Ok();
}

Status Assign(const KnobInfo& info, std::string_view text, int64_t* value) { return AssignNumber(info, text, value); }
Status Assign(const KnobInfo& info, std::string_view text, double* value) { return AssignNumber(info, text, value); }

Status Assign(const KnobInfo& info, std::string_view text, bool* value) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  *value = lower == "1" || lower == "true" || lower == "yes" || lower == "on";
  const bool off = lower == "0" || lower == "false" || lower == "no" || lower == "off" || lower.empty();
  return *value || off ? Status::Ok() : Invalid(info, text, "1, true, yes, on, 0, false, no, off");
}

Status Assign(const KnobInfo& info, std::string_view text, std::string* value) {
  *value = text;
  if (info.type == KnobType::String) return Status::Ok();
  std::ranges::transform(*value, value->begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::vector<std::string> words = Split(info.minimum, '|');
  if (std::ranges::find(words, *value) != words.end()) return Status::Ok();
  const std::string nearest = Nearest(*value, words);
  return Invalid(info, text, Join(words, ", ") + (nearest.empty() ? "" : " (did you mean '" + nearest + "'?)"));
}

Status Unknown(const std::string& name, const std::string& prefixed_nearest) {
  return {StatusCode::kInvalidArgument,
          "there is no knob '" + Printable(name) + "'" +
              (prefixed_nearest.empty() ? "" : "; did you mean '" + prefixed_nearest + "'?") +
              " `horocache doctor` lists all knobs."};
}

// Names that begin with HOROCACHE_ must be knobs. HOROVOD_ names are not checked: many have no meaning here.
Status CheckNames(const std::map<std::string, std::string>& environment,
                  const std::map<std::string, std::string>& arguments) {
  std::vector<std::string> variables, names;
  for (const KnobInfo& info : KnobTable()) {
    variables.push_back(EnvironmentName(info.name));
    names.emplace_back(info.name);
  }
  for (const auto& [name, value] : environment) {
    if (name.starts_with("HOROCACHE_") && std::ranges::find(variables, name) == variables.end())
      return Unknown(name, Nearest(name, variables));
  }
  for (const auto& [name, value] : arguments) {
    if (std::ranges::find(names, name) == names.end()) return Unknown(name, Nearest(name, names));
  }
  return Status::Ok();
}

Knobs::Entry Resolve(const KnobInfo& info, const std::map<std::string, std::string>& environment,
                     const std::map<std::string, std::string>& arguments) {
  if (const auto it = arguments.find(std::string(info.name)); it != arguments.end())
    return {it->second, KnobSource::kArgument};
  if (const auto it = environment.find(EnvironmentName(info.name)); it != environment.end())
    return {it->second, KnobSource::kEnvironment};
  if (!info.horovod_alias.empty()) {
    if (const auto it = environment.find(std::string(info.horovod_alias)); it != environment.end()) {
      return {it->second, KnobSource::kHorovodAlias};
    }
  }
  return {std::string(info.default_value), KnobSource::kDefault};
}

// Rejects a NUL byte: the operating system would cut a path there and use another file.
Status CheckNoNul(const KnobInfo& info, const std::string& text) {
  if (text.find('\0') == std::string::npos) return Status::Ok();
  return InvalidArgumentError("knob " + std::string(info.name) + " (" + EnvironmentName(info.name) + ") has '" +
                              Printable(text) + "', with a NUL byte; give it without one");
}

}  // namespace

std::string_view KnobSourceName(KnobSource source) {
  static constexpr std::array<std::string_view, 4> kNames = {"default", "environment", "horovod environment",
                                                             "argument"};
  return kNames.at(static_cast<size_t>(source));
}

const std::vector<KnobInfo>& KnobTable() {
  static const auto* const table = new std::vector<KnobInfo>{
  // never destroyed: threads may outlive static destruction
#define HC_KNOB(name, type, default_value, minimum, maximum, alias, scope, doc) \
  KnobInfo{#name, KnobType::type, default_value, minimum, maximum, alias, KnobScope::scope, doc},
#include "base/knobs.def"
#undef HC_KNOB
  };
  return *table;
}

StatusOr<Knobs> Knobs::Parse(const std::map<std::string, std::string>& environment,
                             const std::map<std::string, std::string>& arguments) {
  HC_RETURN_IF_ERROR(CheckNames(environment, arguments));
  Knobs knobs;
  for (const KnobInfo& info : KnobTable()) {
    knobs.entries.push_back(Resolve(info, environment, arguments));
    HC_RETURN_IF_ERROR(CheckNoNul(info, knobs.entries.back().text));
  }
  size_t index = 0;
#define HC_KNOB(name, type, default_value, minimum, maximum, alias, scope, doc)           \
  HC_RETURN_IF_ERROR(Assign(KnobTable()[index], knobs.entries[index].text, &knobs.name)); \
  ++index;
#include "base/knobs.def"
#undef HC_KNOB
  return knobs;
}

bool Knobs::IsDefault(std::string_view name) const {
  for (size_t i = 0; i < entries.size(); ++i) {
    if (KnobTable()[i].name == name) return entries[i].source == KnobSource::kDefault;
  }
  return false;
}

std::string Knobs::AgreeText() const {
  std::string text;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (KnobTable()[i].scope == KnobScope::agree)
      text += std::string(KnobTable()[i].name) + "=" + entries[i].text + "\n";
  }
  return text;
}

}  // namespace horocache
