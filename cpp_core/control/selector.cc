#include "control/selector.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/text.h"
#include "control/hashing.h"
#include "control/signature.h"

namespace horocache::control {
namespace {

constexpr std::string_view kForm = "op[,dtype][,device][,ranks][:low-high]=backend[/algorithm]";
constexpr std::string_view kRanks = "ranks";

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

Status BadRule(std::string_view rule, const std::string& why) {
  return {StatusCode::kInvalidArgument, "HOROCACHE_SELECT: rule '" + Printable(rule) + "': " + why};
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

Status ParseOp(std::string_view rule, std::string_view text, int* op) {
  *op = -1;
  if (text == "*") return Status::Ok();
  std::vector<std::string> names = {"*"};
  for (int i = 0; i < wire::kNumOps; ++i) {
    const std::string_view name = OpName(static_cast<wire::Op>(i));
    if (name == text) *op = i;
    names.emplace_back(name);
  }
  return *op >= 0 ? Status::Ok() : BadRule(rule, Unknown("operation", text, names));
}

Status ParseRange(std::string_view rule, std::string_view text, int op, int64_t* low, int64_t* high) {
  const size_t dash = text.find('-');
  const std::string_view high_text = dash == std::string_view::npos ? "" : text.substr(dash + 1);
  if (dash == std::string_view::npos || !ParseSize(text.substr(0, dash), low) ||
      (!high_text.empty() && !ParseSize(high_text, high))) {
    return BadRule(rule, "'" + Printable(text) + "' is not a size range; write low-high, such as 0-64k or 64k-.");
  }
  if (*high >= 0 && *high <= *low) return BadRule(rule, "the size range '" + Printable(text) + "' is empty.");
  if (op >= 0 && wire::SizesDiffer(static_cast<wire::Op>(op))) {
    return BadRule(rule, "the sizes of " + std::string(OpName(static_cast<wire::Op>(op))) +
                             " differ by rank, so it cannot be chosen by size; leave the range away.");
  }
  return Status::Ok();
}

bool Can(const BackendTraits& backend, wire::Op op, wire::DeviceClass device, int ranks) {
  return (backend.ops >> static_cast<int>(op) & 1) != 0 &&
         (backend.device_classes >> static_cast<int>(device) & 1) != 0 && ranks >= backend.min_ranks &&
         ranks <= backend.max_ranks;
}

// The first class of devices that a backend reaches.
wire::DeviceClass SomeDeviceOf(const BackendTraits& backend) {
  return static_cast<wire::DeviceClass>(std::countr_zero(backend.device_classes));
}

}  // namespace

StatusOr<Selector> Selector::Parse(std::vector<BackendTraits> backends, int ranks, std::string_view overrides,
                                   std::string note) {
  Selector selector;
  selector.note_ = std::move(note);
  selector.backends_ = std::move(backends);
  selector.ranks_ = ranks;
  for (const std::string& part : Split(overrides, ';')) {
    const std::string_view rule = Trim(part);
    if (rule.empty()) continue;
    StatusOr<Rule> parsed = selector.ParseRule(rule);
    if (!parsed.ok()) return parsed.status();
    selector.rules_.push_back(*parsed);
  }
  return selector;
}

Status Selector::ParseTerm(std::string_view rule, std::string_view term, Rule* parsed) {
  if (term.ends_with(kRanks)) {
    const std::string_view range = term.substr(0, term.size() - kRanks.size());
    const size_t dash = range.find('-');
    const std::string_view high = dash == std::string_view::npos ? range : range.substr(dash + 1);
    const bool good = ParseSize(range.substr(0, dash), &parsed->min_ranks) &&
                      (high.empty() || ParseSize(high, &parsed->max_ranks)) &&
                      (parsed->max_ranks < 0 || parsed->max_ranks >= parsed->min_ranks);
    if (good) return Status::Ok();
    return BadRule(rule, "'" + Printable(term) + "' is not a number of ranks; write 4ranks, 2-8ranks or 16-ranks.");
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
  return known ? Status::Ok() : BadRule(rule, Unknown("element type or device", term, names));
}

std::string Selector::ParseTarget(std::string_view text, Rule* parsed) const {
  const size_t slash = text.find('/');
  const std::string_view backend_name = Trim(text.substr(0, slash));
  const auto backend = std::ranges::find(backends_, backend_name, &BackendTraits::name);
  if (backend == backends_.end()) return Unknown("backend", backend_name, BackendNames(backends_)) + note_;
  parsed->backend = static_cast<uint8_t>(backend - backends_.begin());
  if (slash == std::string_view::npos) return {};
  const std::string_view algorithm_name = Trim(text.substr(slash + 1));
  const auto algorithm = std::ranges::find(backend->algorithms, algorithm_name);
  if (algorithm == backend->algorithms.end()) {
    return Unknown("algorithm of backend " + backend->name, algorithm_name, backend->algorithms);
  }
  parsed->algorithm = static_cast<uint8_t>(algorithm - backend->algorithms.begin());
  return {};
}

StatusOr<Selector::Rule> Selector::ParseRule(std::string_view rule) const {
  const size_t equals = rule.find('=');
  if (equals == std::string_view::npos) return BadRule(rule, "write " + std::string(kForm) + ".");
  const std::string_view left = Trim(rule.substr(0, equals));
  const std::string_view right = Trim(rule.substr(equals + 1));
  Rule parsed;
  const size_t colon = left.find(':');
  std::string_view terms = left.substr(0, colon);
  size_t comma = terms.find(',');
  HC_RETURN_IF_ERROR(ParseOp(rule, Trim(terms.substr(0, comma)), &parsed.op));
  while (comma != std::string_view::npos) {
    terms.remove_prefix(comma + 1);
    comma = terms.find(',');
    HC_RETURN_IF_ERROR(ParseTerm(rule, Trim(terms.substr(0, comma)), &parsed));
  }
  if (colon != std::string_view::npos) {
    HC_RETURN_IF_ERROR(ParseRange(rule, Trim(left.substr(colon + 1)), parsed.op, &parsed.low, &parsed.high));
  }
  if (const std::string wrong = ParseTarget(right, &parsed); !wrong.empty()) return BadRule(rule, wrong);
  const BackendTraits& backend = backends_[parsed.backend];
  if (parsed.op >= 0 && (backend.ops >> parsed.op & 1) == 0) {
    return BadRule(rule, "backend " + backend.name + " does not run " +
                             std::string(wire::OpName(static_cast<wire::Op>(parsed.op))) + ".");
  }
  return parsed;
}

StatusOr<wire::Choice> Selector::Choose(const wire::Signature& signature, int64_t bytes) const {
  const auto can = [&](const BackendTraits& backend) {
    return Can(backend, signature.op, signature.device_class, ranks_);
  };
  const auto choice = [](size_t backend, uint8_t algorithm) {
    // Each backend has one lane, with the backend's index.
    return wire::Choice{static_cast<uint8_t>(backend), algorithm, static_cast<uint16_t>(backend)};
  };
  if (!signature.backend.empty()) {
    Rule asked;
    if (const std::string wrong = ParseTarget(signature.backend, &asked); !wrong.empty()) {
      return Status(StatusCode::kUnsupported, Describe(signature) + ": " + wrong);
    }
    // A barrier has no tensors, so it is of no device.
    wire::DeviceClass device = signature.device_class;
    if (signature.tensors.empty()) device = SomeDeviceOf(backends_[asked.backend]);
    if (Can(backends_[asked.backend], signature.op, device, ranks_)) return choice(asked.backend, asked.algorithm);
    return Unsupported(signature);
  }
  for (const Rule& rule : rules_) {
    if (Applies(rule, signature, bytes) && can(backends_[rule.backend])) return choice(rule.backend, rule.algorithm);
  }
  const auto first = std::ranges::find_if(backends_, can);
  if (first == backends_.end()) return Unsupported(signature);
  return choice(static_cast<size_t>(first - backends_.begin()), 0);
}

bool Selector::Applies(const Rule& rule, const wire::Signature& signature, int64_t bytes) const {
  const wire::Op op = signature.op;
  if (rule.op >= 0 && rule.op != static_cast<int>(op)) return false;
  if (rule.device >= 0 && rule.device != static_cast<int>(signature.device_class)) return false;
  if (ranks_ < rule.min_ranks || (rule.max_ranks >= 0 && ranks_ > rule.max_ranks)) return false;
  const auto is_of_type = [&](const wire::TensorMeta& tensor) { return rule.dtype == static_cast<int>(tensor.dtype); };
  if (rule.dtype >= 0 && !std::ranges::all_of(signature.tensors, is_of_type)) return false;
  const bool by_size = rule.low > 0 || rule.high >= 0;
  if (!by_size) return true;
  return !wire::SizesDiffer(op) && bytes >= rule.low && (rule.high < 0 || bytes < rule.high);
}

Status Selector::Unsupported(const wire::Signature& signature) const {
  const std::vector<std::string> names = BackendNames(backends_);
  const std::string who =
      signature.backend.empty() ? "no backend runs " : "backend '" + Printable(signature.backend) + "' does not run ";
  return {StatusCode::kUnsupported, Describe(signature) + ": " + who + std::string(OpName(signature.op)) + " on " +
                                        std::string(DeviceClassName(signature.device_class)) + " tensors with " +
                                        std::to_string(ranks_) + (ranks_ == 1 ? " rank" : " ranks") +
                                        ". Backends here: " + (names.empty() ? "none" : Join(names, ", ")) + "."};
}

uint64_t Selector::Hash() const {
  Hasher hash;
  hash.Add(static_cast<uint64_t>(ranks_));
  for (const BackendTraits& backend : backends_) {
    hash.Add(backend.name);
    hash.Add(backend.ops);
    hash.Add(backend.device_classes);
    hash.Add(static_cast<uint64_t>(backend.min_ranks));
    hash.Add(static_cast<uint64_t>(backend.max_ranks));
    for (const std::string& algorithm : backend.algorithms) hash.Add(algorithm);
    hash.Add(backend.plain_fold ? 1 : 0);
  }
  hash.Add(backends_.size());
  for (const Rule& rule : rules_) {
    hash.Add(static_cast<uint64_t>(static_cast<int64_t>(rule.op)));
    hash.Add(static_cast<uint64_t>(static_cast<int64_t>(rule.dtype)));
    hash.Add(static_cast<uint64_t>(static_cast<int64_t>(rule.device)));
    hash.Add(static_cast<uint64_t>(rule.min_ranks));
    hash.Add(static_cast<uint64_t>(rule.max_ranks));
    hash.Add(static_cast<uint64_t>(rule.low));
    hash.Add(static_cast<uint64_t>(rule.high));
    hash.Add(static_cast<uint64_t>(rule.backend) << 8 | rule.algorithm);
  }
  return hash.value();
}

std::string Selector::ToString() const {
  std::string text;
  for (const Rule& rule : rules_) {
    text += rule.op < 0 ? "*" : std::string(OpName(static_cast<wire::Op>(rule.op)));
    if (rule.dtype >= 0) text += "," + std::string(DTypeName(static_cast<DType>(rule.dtype)));
    if (rule.device >= 0) text += "," + std::string(DeviceClassName(static_cast<wire::DeviceClass>(rule.device)));
    if (rule.min_ranks > 1 || rule.max_ranks >= 0) {
      text += "," + std::to_string(rule.min_ranks) + "-" + (rule.max_ranks < 0 ? "" : std::to_string(rule.max_ranks)) +
              std::string(kRanks);
    }
    if (rule.low > 0 || rule.high >= 0) {
      text += ":" + std::to_string(rule.low) + "-" + (rule.high < 0 ? "" : std::to_string(rule.high));
    }
    const BackendTraits& backend = backends_[rule.backend];
    text += "=" + backend.name;
    if (rule.algorithm < backend.algorithms.size()) text += "/" + backend.algorithms[rule.algorithm];
    text += "\n";
  }
  for (size_t i = 0; i < backends_.size(); ++i) text += "default " + std::to_string(i) + "=" + backends_[i].name + "\n";
  return text;
}

}  // namespace horocache::control
