#include "control/selector.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/text.h"
#include "control/hashing.h"
#include "control/signature.h"

namespace horocache::control {
namespace {

constexpr std::string_view kForm = "op[,dtype][,device][,ranks][,hosts][:low-high]=backend[/algorithm]";
constexpr std::string_view kRanks = "ranks";
constexpr std::string_view kHosts = "hosts";

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

Status BadRule(std::string_view rule, wire::ChosenBy kind, const std::string& why) {
  const std::string source = kind == wire::ChosenBy::kTable ? "the tuning table" : "HOROCACHE_SELECT";
  return {StatusCode::kInvalidArgument, source + ": rule '" + Printable(rule) + "': " + why};
}

std::string Unknown(const std::string& what, std::string_view name, const std::vector<std::string>& known) {
  std::string text = "there is no " + what + " '" + Printable(name) + "'";
  const std::string near = Nearest(name, known);
  text += near.empty() ? "." : "; did you mean '" + near + "'?";
  return text + " Known: " + (known.empty() ? "none" : Join(known, ", ")) + ".";
}

std::vector<std::string> BackendNames(const std::vector<BackendTraits>& backends) {
  std::vector<std::string> names;
  for (const BackendTraits& backend : backends) names.push_back(backend.name);
  return names;
}

// Parses a size such as "64k" into bytes; false if the text is not a size.
bool ParseSize(std::string_view text, int64_t* bytes) {
  int shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      default:
        break;
    }
    if (shift > 0) text.remove_suffix(1);
  }
  if (!ParseNumber(text, bytes) || *bytes < 0) return false;
  if (*bytes > (std::numeric_limits<int64_t>::max() >> shift)) return false;
  *bytes <<= shift;
  return true;
}

Status ParseOp(std::string_view text, int* op) {
  *op = -1;
  if (text == "*") return Status::Ok();
  std::vector<std::string> names = {"*"};
  for (int i = 0; i < wire::kNumOps; ++i) {
    const std::string_view name = OpName(static_cast<wire::Op>(i));
    if (name == text) *op = i;
    names.emplace_back(name);
  }
  return *op >= 0 ? Status::Ok() : InvalidArgumentError(Unknown("operation", text, names));
}

Status ParseRange(std::string_view text, int op, int64_t* low, int64_t* high) {
  const size_t dash = text.find('-');
  const std::string_view high_text = dash == std::string_view::npos ? "" : text.substr(dash + 1);
  if (dash == std::string_view::npos || !ParseSize(text.substr(0, dash), low) ||
      (!high_text.empty() && !ParseSize(high_text, high))) {
    return InvalidArgumentError("'" + Printable(text) +
                                "' is not a size range; write low-high, such as 0-64k or 64k-.");
  }
  if (*high >= 0 && *high <= *low) return InvalidArgumentError("the size range '" + Printable(text) + "' is empty.");
  if (op >= 0 && wire::SizesDiffer(static_cast<wire::Op>(op))) {
    return InvalidArgumentError("the sizes of " + std::string(OpName(static_cast<wire::Op>(op))) +
                                " differ by rank, so it cannot be chosen by size; leave the range away.");
  }
  return Status::Ok();
}

bool HasBit(uint32_t bits, int bit) { return (bits >> bit & 1u) != 0; }

// Parses 4, 2-8 or 16-.
bool ParseNumbers(std::string_view text, int64_t* low, int64_t* high) {
  const size_t dash = text.find('-');
  const std::string_view last = dash == std::string_view::npos ? text : text.substr(dash + 1);
  return ParseSize(text.substr(0, dash), low) && (last.empty() || ParseSize(last, high)) &&
         (*high < 0 || *high >= *low);
}

// The text of ParseNumbers for a term such as "2-8ranks"; empty if any number fits.
std::string NumbersText(int64_t low, int64_t high, std::string_view unit) {
  if (low <= 1 && high < 0) return {};
  return "," + std::to_string(low) + "-" + (high < 0 ? "" : std::to_string(high)) + std::string(unit);
}

}  // namespace

std::vector<std::string> OperationsOf(const BackendTraits& backend) {
  std::vector<std::string> names;
  for (int op = 0; op < wire::kNumOps; ++op) {
    if (HasBit(backend.ops, op)) names.emplace_back(OpName(static_cast<wire::Op>(op)));
  }
  return names;
}

bool Allows(std::string_view named, std::string_view backend) {
  if (named.empty()) return true;
  while (true) {
    const std::string_view first = named.substr(0, named.find('|'));
    if (Trim(first.substr(0, first.find('/'))) == backend) return true;
    if (first.size() == named.size()) return false;
    named.remove_prefix(first.size() + 1);
  }
}

StatusOr<Selector> Selector::Parse(std::vector<BackendTraits> backends, SetSize size, std::string_view rules,
                                   std::string_view table, std::string note, bool open) {
  Selector selector;
  selector.open_ = open;
  selector.note_ = std::move(note);
  selector.backends_ = std::move(backends);
  selector.size_ = size;
  HC_RETURN_IF_ERROR(selector.AddRules(rules, wire::ChosenBy::kRule, &selector.rules_));
  HC_RETURN_IF_ERROR(selector.AddRules(table, wire::ChosenBy::kTable, &selector.rules_));
  return selector;
}

Status Selector::SetTable(std::string_view table) {
  std::vector<Rule> rules = rules_;
  std::erase_if(rules, [](const Rule& rule) { return rule.kind == wire::ChosenBy::kTable; });
  HC_RETURN_IF_ERROR(AddRules(table, wire::ChosenBy::kTable, &rules));
  rules_ = std::move(rules);
  return Status::Ok();
}

Status Selector::AddRules(std::string_view rules, wire::ChosenBy kind, std::vector<Rule>* out) const {
  for (const std::string& part : Split(rules, ';')) {
    const std::string_view rule = Trim(part);
    if (rule.empty()) continue;
    StatusOr<Rule> parsed = ParseRule(rule);
    const bool may_miss = kind == wire::ChosenBy::kTable || MayBeElsewhere(rule);
    const bool is_missing = may_miss && parsed.status().code() == StatusCode::kUnsupported;
    if (is_missing) continue;
    if (!parsed.ok()) return BadRule(rule, kind, parsed.status().message());
    parsed->kind = kind;
    out->push_back(*parsed);
  }
  return Status::Ok();
}

// A name that resembles one of a backend here is taken for a typing error.
bool Selector::MayBeElsewhere(std::string_view rule) const {
  const std::string_view target = rule.substr(std::min(rule.find('='), rule.size() - 1) + 1);
  const std::string_view name = Trim(target.substr(0, target.find('/')));
  const bool is_here = std::ranges::find(backends_, name, &BackendTraits::name) != backends_.end();
  return open_ && !name.empty() && !is_here && Nearest(name, BackendNames(backends_)).empty();
}

Status Selector::ParseTerm(std::string_view term, Rule* parsed) {
  for (const std::string_view unit : {kRanks, kHosts}) {
    if (!term.ends_with(unit)) continue;
    const std::string_view numbers = term.substr(0, term.size() - unit.size());
    const bool good = unit == kRanks ? ParseNumbers(numbers, &parsed->min_ranks, &parsed->max_ranks)
                                     : ParseNumbers(numbers, &parsed->min_hosts, &parsed->max_hosts);
    if (good) return Status::Ok();
    const std::string of(unit);
    return InvalidArgumentError("'" + Printable(term) + "' is not a number of " + of + "; write 4" + of + ", 2-8" + of +
                                " or 16-" + of + ".");
  }
  std::vector<std::string> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    names.emplace_back(DTypeName(static_cast<DType>(i)));
    if (names.back() == term) parsed->dtype = i;
  }
  for (int i = 0; i < wire::kNumDeviceClasses; ++i) {
    names.emplace_back(DeviceClassName(static_cast<wire::DeviceClass>(i)));
    if (names.back() == term) parsed->device = i;
  }
  const bool known = std::ranges::find(names, term) != names.end();
  return known ? Status::Ok() : InvalidArgumentError(Unknown("element type or device", term, names));
}

std::string Selector::ParseTarget(std::string_view text, Target* target) const {
  const size_t slash = text.find('/');
  const std::string_view backend_name = Trim(text.substr(0, slash));
  const auto backend = std::ranges::find(backends_, backend_name, &BackendTraits::name);
  if (backend == backends_.end()) return Unknown("backend", backend_name, BackendNames(backends_)) + note_;
  *target = {static_cast<uint8_t>(backend - backends_.begin()), 0};
  if (slash == std::string_view::npos) return {};
  const std::string_view algorithm_name = Trim(text.substr(slash + 1));
  const auto algorithm = std::ranges::find(backend->algorithms, algorithm_name);
  if (algorithm == backend->algorithms.end()) {
    return Unknown("algorithm of backend " + backend->name, algorithm_name, backend->algorithms);
  }
  target->algorithm = static_cast<uint8_t>(algorithm - backend->algorithms.begin());
  return {};
}

Status Selector::ParseCondition(std::string_view text, Rule* parsed) {
  const size_t colon = text.find(':');
  std::string_view terms = text.substr(0, colon);
  size_t comma = terms.find(',');
  HC_RETURN_IF_ERROR(ParseOp(Trim(terms.substr(0, comma)), &parsed->op));
  while (comma != std::string_view::npos) {
    terms.remove_prefix(comma + 1);
    comma = terms.find(',');
    HC_RETURN_IF_ERROR(ParseTerm(Trim(terms.substr(0, comma)), parsed));
  }
  if (colon == std::string_view::npos) return Status::Ok();
  return ParseRange(Trim(text.substr(colon + 1)), parsed->op, &parsed->low, &parsed->high);
}

// kUnsupported if the target is not here.
StatusOr<Selector::Rule> Selector::ParseRule(std::string_view rule) const {
  const size_t equals = rule.find('=');
  if (equals == std::string_view::npos) return InvalidArgumentError("write " + std::string(kForm) + ".");
  Rule parsed;
  HC_RETURN_IF_ERROR(ParseCondition(Trim(rule.substr(0, equals)), &parsed));
  if (const std::string wrong = ParseTarget(Trim(rule.substr(equals + 1)), &parsed.target); !wrong.empty())
    return Status(StatusCode::kUnsupported, wrong);
  const BackendTraits& backend = backends_[parsed.target.backend];
  if (parsed.op < 0 || HasBit(backend.ops, parsed.op)) return parsed;
  return Status(StatusCode::kUnsupported, "backend " + backend.name + " does not run " +
                                              std::string(wire::OpName(static_cast<wire::Op>(parsed.op))) + ".");
}

bool Selector::Can(const Target& target, const wire::Signature& signature) const {
  const BackendTraits& backend = backends_[target.backend];
  const uint32_t dtypes = wire::HasReduceOp(signature.op) ? backend.reduced_dtypes : backend.moved_dtypes;
  const auto has_type = [dtypes](const wire::TensorMeta& tensor) {
    return HasBit(dtypes, static_cast<int>(tensor.dtype));
  };
  // A barrier has no tensors. It may run on any device by a backend that the call names; otherwise it is the host's, so
  // that it does not wait behind the work of a device.
  const bool any_device = signature.tensors.empty() && !signature.backend.empty();
  const bool reaches = any_device ? backend.device_classes != 0
                                  : HasBit(backend.device_classes, static_cast<int>(signature.device_class));
  return HasBit(backend.ops, static_cast<int>(signature.op)) && reaches && size_.ranks >= backend.min_ranks &&
         size_.ranks <= backend.max_ranks && std::ranges::all_of(signature.tensors, has_type);
}

std::vector<Selector::Target> Selector::Asked(const wire::Signature& signature, std::string* wrong) const {
  std::vector<Target> asked;
  for (const std::string& name : Split(signature.backend, '|')) {
    *wrong = ParseTarget(name, &asked.emplace_back());
    if (!wrong->empty()) break;
  }
  return asked;
}

StatusOr<wire::Choice> Selector::Choose(const wire::Signature& signature, int64_t bytes) const {
  // The main lane of a backend has the backend's index.
  const auto choice = [](const Target& target, wire::ChosenBy by) {
    return wire::Choice{target.backend, target.algorithm, target.backend, by};
  };
  std::vector<Target> candidates;
  const bool names_any = !signature.backend.empty();
  if (names_any) {
    std::string wrong;
    candidates = Asked(signature, &wrong);
    if (!wrong.empty()) return Status(StatusCode::kUnsupported, Describe(signature) + ": " + wrong);
  } else {
    for (size_t i = 0; i < backends_.size(); ++i) candidates.push_back({static_cast<uint8_t>(i), 0});
  }
  std::erase_if(candidates, [&](const Target& target) { return !Can(target, signature); });
  if (candidates.empty()) return Unsupported(signature);
  const bool is_named = names_any && signature.backend.find('|') == std::string::npos;
  if (is_named) return choice(candidates.front(), wire::ChosenBy::kCall);
  for (const Rule& rule : rules_) {
    if (!Applies(rule, signature, bytes)) continue;
    const std::optional<Target> target = Pick(rule.target, candidates);
    if (!target) continue;
    const bool may_refuse = rule.kind == wire::ChosenBy::kTable && supports_ != nullptr;
    if (!may_refuse || supports_(signature, target->backend, target->algorithm)) return choice(*target, rule.kind);
  }
  return choice(candidates.front(), wire::ChosenBy::kOrder);
}

std::optional<Selector::Target> Selector::Pick(const Target& rule, const std::vector<Target>& candidates) {
  for (const Target& target : candidates) {
    if (target.backend != rule.backend) continue;
    if (rule.algorithm == 0 || target.algorithm == rule.algorithm) return target;
    if (target.algorithm == 0) return rule;
  }
  return std::nullopt;
}

bool Selector::IsForThisSet(const Rule& rule) const {
  const auto within = [](int64_t number, int64_t low, int64_t high) {
    return number >= low && (high < 0 || number <= high);
  };
  return within(size_.ranks, rule.min_ranks, rule.max_ranks) && within(size_.hosts, rule.min_hosts, rule.max_hosts);
}

bool Selector::Applies(const Rule& rule, const wire::Signature& signature, int64_t bytes) const {
  const wire::Op op = signature.op;
  if (rule.op >= 0 && rule.op != static_cast<int>(op)) return false;
  if (rule.device >= 0 && rule.device != static_cast<int>(signature.device_class)) return false;
  if (!IsForThisSet(rule)) return false;
  const auto is_of_type = [&](const wire::TensorMeta& tensor) { return rule.dtype == static_cast<int>(tensor.dtype); };
  if (rule.dtype >= 0 && !std::ranges::all_of(signature.tensors, is_of_type)) return false;
  const bool by_size = rule.low > 0 || rule.high >= 0;
  if (!by_size) return true;
  return !wire::SizesDiffer(op) && bytes >= rule.low && (rule.high < 0 || bytes < rule.high);
}

Status Selector::Unsupported(const wire::Signature& signature) const {
  const std::vector<std::string> names = BackendNames(backends_);
  const bool several = signature.backend.find('|') != std::string::npos;
  const std::string who = signature.backend.empty() ? "no backend runs "
                          : several ? "none of the backends '" + Printable(signature.backend) + "' runs "
                                    : "backend '" + Printable(signature.backend) + "' does not run ";
  const std::string type =
      signature.tensors.empty() ? "" : " of " + std::string(DTypeName(signature.tensors.front().dtype));
  return {StatusCode::kUnsupported, Describe(signature) + ": " + who + std::string(OpName(signature.op)) + type +
                                        " on " + std::string(DeviceClassName(signature.device_class)) +
                                        " tensors with " + std::to_string(size_.ranks) +
                                        (size_.ranks == 1 ? " rank" : " ranks") +
                                        ". Backends here: " + (names.empty() ? "none" : Join(names, ", ")) + "."};
}

uint64_t Selector::Hash() const {
  Hasher hash;
  hash.Add(static_cast<uint64_t>(size_.ranks));
  hash.Add(static_cast<uint64_t>(size_.hosts));
  for (const BackendTraits& backend : backends_) {
    hash.Add(backend.name);
    hash.Add(backend.ops);
    hash.Add(backend.device_classes);
    hash.Add(static_cast<uint64_t>(backend.min_ranks));
    hash.Add(static_cast<uint64_t>(backend.max_ranks));
    for (const std::string& algorithm : backend.algorithms) hash.Add(algorithm);
    hash.Add(backend.plain_fold ? 1 : 0);
    hash.Add(static_cast<uint64_t>(backend.moved_dtypes) << 32 | backend.reduced_dtypes);
  }
  hash.Add(backends_.size());
  for (const Rule& rule : rules_) {
    hash.Add(static_cast<uint64_t>(static_cast<int64_t>(rule.op)));
    hash.Add(static_cast<uint64_t>(static_cast<int64_t>(rule.dtype)));
    hash.Add(static_cast<uint64_t>(static_cast<int64_t>(rule.device)));
    hash.Add(static_cast<uint64_t>(rule.min_ranks));
    hash.Add(static_cast<uint64_t>(rule.max_ranks));
    hash.Add(static_cast<uint64_t>(rule.min_hosts));
    hash.Add(static_cast<uint64_t>(rule.max_hosts));
    hash.Add(static_cast<uint64_t>(rule.low));
    hash.Add(static_cast<uint64_t>(rule.high));
    hash.Add(static_cast<uint64_t>(rule.target.backend) << 8 | rule.target.algorithm);
    hash.Add(static_cast<uint64_t>(rule.kind));
  }
  return hash.value();
}

std::string Selector::ToString() const {
  std::string text;
  for (const Rule& rule : rules_) {
    text += rule.op < 0 ? "*" : std::string(OpName(static_cast<wire::Op>(rule.op)));
    if (rule.dtype >= 0) text += "," + std::string(DTypeName(static_cast<DType>(rule.dtype)));
    if (rule.device >= 0) text += "," + std::string(DeviceClassName(static_cast<wire::DeviceClass>(rule.device)));
    text += NumbersText(rule.min_ranks, rule.max_ranks, kRanks) + NumbersText(rule.min_hosts, rule.max_hosts, kHosts);
    if (rule.low > 0 || rule.high >= 0) {
      text += ":" + std::to_string(rule.low) + "-" + (rule.high < 0 ? "" : std::to_string(rule.high));
    }
    const BackendTraits& backend = backends_[rule.target.backend];
    text += "=" + backend.name;
    if (rule.target.algorithm < backend.algorithms.size()) text += "/" + backend.algorithms[rule.target.algorithm];
    text += "\n";
  }
  for (size_t i = 0; i < backends_.size(); ++i) text += "default " + std::to_string(i) + "=" + backends_[i].name + "\n";
  return text;
}

}  // namespace horocache::control
