#include "net/bootstrap/handshake.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/text.h"

namespace horocache::net {
namespace {

constexpr size_t kMaxShown = 120;  // bytes of one value in a message
constexpr size_t kMaxLines = 40;   // lines of the table of differences
constexpr size_t kMaxNamed = 8;    // ranks named in one list
constexpr auto kLastCode = static_cast<uint32_t>(StatusCode::kInternal);

void Put(uint32_t number, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) *out += static_cast<char>(number >> shift);
}

void Put(std::string_view text, std::string* out) {
  Put(static_cast<uint32_t>(text.size()), out);
  *out += text;
}

class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  uint32_t Number() {
    uint32_t number = 0;
    const std::string_view raw = Bytes(4);
    for (size_t i = 0; i < raw.size(); ++i) number |= static_cast<uint32_t>(static_cast<uint8_t>(raw[i])) << (8 * i);
    return number;
  }

  std::string Text() { return std::string(Bytes(Number())); }

  std::string_view Bytes(size_t count) {
    if (!good_ || count > bytes_.size()) {
      good_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  bool good() const { return good_; }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool good_ = true;
};

std::string Shown(const std::string& value) {
  return "'" + Printable(value.substr(0, kMaxShown)) + (value.size() > kMaxShown ? "...'" : "'");
}

// All values that must be equal, by name.
std::map<std::string, std::string> Values(const Hello& hello) {
  std::map<std::string, std::string> values;
  std::string_view rest = hello.handshake.agree;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t equals = line.find('=');
    if (line.empty()) continue;
    values[std::string(line.substr(0, equals))] =
        equals == std::string_view::npos ? "" : std::string(line.substr(equals + 1));
  }
  values["version of horocache"] = hello.handshake.version;
  values["protocol"] = std::to_string(hello.handshake.protocol);
  values["epoch (calls of init)"] = std::to_string(hello.handshake.epoch);
  const bool little = hello.byte_order == std::array<uint8_t, 4>{4, 3, 2, 1};
  const bool big = hello.byte_order == std::array<uint8_t, 4>{1, 2, 3, 4};
  values["byte order"] = little ? "little endian" : big ? "big endian" : "unknown";
  return values;
}

}  // namespace

std::array<uint8_t, 4> OwnByteOrder() { return std::bit_cast<std::array<uint8_t, 4>>(uint32_t{0x01020304}); }

std::string EncodeHello(const Hello& hello) {
  std::string out;
  Put(hello.rank, &out);
  Put(hello.size, &out);
  Put(hello.pid, &out);
  out.append(reinterpret_cast<const char*>(hello.byte_order.data()), hello.byte_order.size());
  Put(hello.handshake.protocol, &out);
  Put(hello.handshake.epoch, &out);
  Put(hello.job, &out);
  Put(hello.handshake.version, &out);
  Put(hello.handshake.agree, &out);
  return out;
}

// Ignores bytes after the last field: a later version may send more, and its version is then refused.
std::optional<Hello> DecodeHello(std::string_view payload) {
  Decoder decoder(payload);
  Hello hello;
  hello.rank = decoder.Number();
  hello.size = decoder.Number();
  hello.pid = decoder.Number();
  const std::string_view order = decoder.Bytes(hello.byte_order.size());
  std::copy(order.begin(), order.end(), hello.byte_order.begin());
  hello.handshake.protocol = decoder.Number();
  hello.handshake.epoch = decoder.Number();
  hello.job = decoder.Text();
  hello.handshake.version = decoder.Text();
  hello.handshake.agree = decoder.Text();
  if (!decoder.good()) return std::nullopt;
  return hello;
}

std::string EncodeStatus(const Status& status) {
  std::string out;
  Put(static_cast<uint32_t>(status.code()), &out);
  Put(status.message(), &out);
  return out;
}

std::optional<Status> DecodeStatus(std::string_view payload) {
  Decoder decoder(payload);
  const uint32_t code = decoder.Number();
  std::string text = decoder.Text();
  if (!decoder.good() || code > kLastCode) return std::nullopt;
  return Status(static_cast<StatusCode>(code), std::move(text));
}

std::string EncodeNumbers(const std::vector<uint32_t>& numbers) {
  std::string out;
  for (uint32_t number : numbers) Put(number, &out);
  return out;
}

std::optional<std::vector<uint32_t>> DecodeNumbers(std::string_view payload) {
  Decoder decoder(payload);
  std::vector<uint32_t> numbers;
  while (!decoder.empty() && decoder.good()) numbers.push_back(decoder.Number());
  if (!decoder.good()) return std::nullopt;
  return numbers;
}

std::string EncodeTexts(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) Put(text, &out);
  return out;
}

std::optional<std::vector<std::string>> DecodeTexts(std::string_view payload) {
  Decoder decoder(payload);
  std::vector<std::string> texts;
  while (!decoder.empty() && decoder.good()) texts.push_back(decoder.Text());
  if (!decoder.good()) return std::nullopt;
  return texts;
}

std::string NameRanks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return "rank " + std::to_string(ranks[0]);
  std::vector<std::string> first;
  const bool all = ranks.size() <= kMaxNamed;
  for (size_t i = 0; i < (all ? ranks.size() - 1 : kMaxNamed); ++i) first.push_back(std::to_string(ranks[i]));
  return "ranks " + Join(first, ", ") + " and " +
         (all ? std::to_string(ranks.back()) : std::to_string(ranks.size() - kMaxNamed) + " others");
}

Status ForOthers(const std::string& who, const Status& why) {
  return why.code() == StatusCode::kAborted ? Status(why.code(), who + ": " + why.message()) : why;
}

std::string Differences(const std::vector<const Hello*>& hellos, const std::vector<int>& job_ranks) {
  // name -> value (none: not set) -> ranks
  std::map<std::string, std::map<std::optional<std::string>, std::vector<int>>> table;
  std::vector<std::map<std::string, std::string>> values;
  for (const Hello* hello : hellos) {
    values.push_back(Values(*hello));
    for (const auto& [name, value] : values.back()) table[name];
  }
  for (auto& [name, row] : table) {
    for (size_t i = 0; i < hellos.size(); ++i) {
      const auto found = values[i].find(name);
      const auto value = found == values[i].end() ? std::nullopt : std::optional<std::string>(found->second);
      const size_t rank = hellos[i]->rank;
      row[value].push_back(rank < job_ranks.size() ? job_ranks[rank] : static_cast<int>(rank));
    }
  }
  std::string text;
  size_t lines = 0;
  for (auto& [name, row] : table) {
    if (row.size() < 2) continue;
    if (++lines > kMaxLines) return text + "\n  ...";
    // Rank 0's value comes first, as the reference.
    std::vector<std::pair<std::vector<int>, std::string>> cells;
    for (auto& [value, ranks] : row) cells.emplace_back(ranks, value ? Shown(*value) : "no such value");
    std::ranges::sort(cells);
    std::vector<std::string> parts;
    for (const auto& [ranks, value] : cells) parts.push_back(value + " on " + NameRanks(ranks));
    text += "\n  " + Printable(name.substr(0, kMaxShown)) + ": " + Join(parts, ", ");
  }
  return text;
}

}  // namespace horocache::net
