#include "control/strategies/relay_frame.h"

#include <optional>
#include <utility>

#include "wire/codec.h"

namespace horocache::control {

namespace {

constexpr uint8_t kMagic[] = {'H', 'C', 'T', wire::kProtocolVersion};

void PutVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void PutWord(uint64_t value, std::string* out) {
  for (int shift = 0; shift < 64; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

void PutText(const std::string& text, std::string* out) {
  PutVarint(text.size(), out);
  out->append(text);
}

// Reads fields from hostile bytes; after the first failure every field reads as zero.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return error_.empty(); }
  size_t left() const { return bytes_.size() - at_; }
  void Fail(const char* what) {
    if (ok()) error_ = std::string(what) + " at byte " + std::to_string(at_);
  }
  Status status() const {
    return {StatusCode::kCorrupt, "a frame of " + std::to_string(bytes_.size()) + " bytes does not decode: " + error_};
  }

  uint8_t Byte() {
    if (!ok() || left() == 0) {
      Fail("it ends");
      return 0;
    }
    return static_cast<uint8_t>(bytes_[at_++]);
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) {
        if (shift == 63 && byte > 1) Fail("a number is too large");
        return ok() ? value : 0;
      }
    }
    Fail("a number is too long");
    return 0;
  }
  uint64_t Word() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 8) value |= static_cast<uint64_t>(Byte()) << shift;
    return value;
  }
  // Reads the count of elements of at least `bytes_each` bytes; fails if the remaining bytes cannot hold that many.
  size_t Count(size_t bytes_each) {
    const uint64_t count = Varint();
    if (count <= left() / bytes_each) return static_cast<size_t>(count);
    Fail("a count is larger than the rest of the frame");
    return 0;
  }
  std::span<const std::byte> Text() {
    const size_t size = Count(1);
    const auto text = bytes_.subspan(at_, size);
    at_ += size;
    return text;
  }
  // Reads a value of another codec; none if its text is empty.
  template <typename T>
  std::optional<T> Nested(StatusOr<T> (*decode)(std::span<const std::byte>)) {
    const auto text = Text();
    if (!ok() || text.empty()) return std::nullopt;
    StatusOr<T> value = decode(text);
    if (value.ok()) return std::move(*value);
    error_ = value.status().message();
    return std::nullopt;
  }

 private:
  const std::span<const std::byte> bytes_;
  size_t at_ = 0;
  std::string error_;
};

RankRuns ReadRuns(Reader* reader, int size) {
  RankRuns runs(reader->Count(2));
  int64_t last = -1;
  for (RankRun& run : runs) {
    const uint64_t begin = reader->Varint(), length = reader->Varint();
    const auto limit = static_cast<uint64_t>(size);
    if (length == 0 || begin > limit || length > limit - begin || static_cast<int64_t>(begin) <= last) {
      reader->Fail("a run of ranks makes no sense");
      return {};
    }
    run = {static_cast<int32_t>(begin), static_cast<int32_t>(begin + length)};
    last = run.end;
  }
  return runs;
}

void ReadRequests(Reader* reader, int size, std::vector<MergedRequest>* requests) {
  std::optional<wire::RequestList> all = reader->Nested(&wire::DecodeRequestList);
  if (!all) return;
  for (wire::Request& request : all->requests) requests->push_back({std::move(request), ReadRuns(reader, size)});
}

}  // namespace

void EncodeFrame(const RelayFrame& frame, std::string* out) {
  for (const uint8_t byte : kMagic) out->push_back(static_cast<char>(byte));
  out->push_back(static_cast<char>(frame.kind));
  PutVarint(frame.process_set, out);
  PutVarint(frame.epoch, out);
  PutVarint(frame.round, out);
  PutVarint(frame.words.size(), out);
  for (const uint64_t word : frame.words) PutWord(word, out);
  // The requests as one list of the wire's codec, then the ranks that made each.
  std::string nested;
  wire::RequestList all;
  all.requests.reserve(frame.requests.size());
  for (const MergedRequest& merged : frame.requests) all.requests.push_back(merged.request);
  if (!all.requests.empty()) wire::Encode(all, &nested);
  PutText(nested, out);
  for (const MergedRequest& merged : frame.requests) {
    PutVarint(merged.ranks.size(), out);
    for (const RankRun& run : merged.ranks) {
      PutVarint(static_cast<uint64_t>(run.begin), out);
      PutVarint(static_cast<uint64_t>(run.end - run.begin), out);
    }
  }
  PutVarint(frame.lists.size(), out);
  for (const wire::RequestList& list : frame.lists) {
    nested.clear();
    wire::Encode(list, &nested);
    PutText(nested, out);
  }
  nested.clear();
  if (frame.has_responses) wire::Encode(frame.responses, &nested);
  PutText(nested, out);
}

StatusOr<RelayFrame> DecodeFrame(std::span<const std::byte> bytes, int size) {
  Reader reader(bytes);
  RelayFrame frame;
  for (const uint8_t byte : kMagic) {
    if (reader.Byte() != byte) reader.Fail("it is not a frame of this version");
  }
  const uint8_t kind = reader.Byte();
  if (kind >= RelayFrame::kNumKinds) reader.Fail("it is of an unknown kind");
  const uint64_t process_set = reader.Varint(), epoch = reader.Varint();
  if ((process_set | epoch) >> 32 != 0) reader.Fail("a number is too large");
  frame.round = reader.Varint();
  frame.words.resize(reader.Count(8));
  for (uint64_t& word : frame.words) word = reader.Word();
  ReadRequests(&reader, size, &frame.requests);
  const size_t lists = reader.Count(1);
  for (size_t i = 0; i < lists && reader.ok(); ++i) {
    std::optional<wire::RequestList> list = reader.Nested(&wire::DecodeRequestList);
    if (!list) reader.Fail("a list is empty");
    if (list) frame.lists.push_back(std::move(*list));
  }
  if (std::optional<wire::ResponseList> responses = reader.Nested(&wire::DecodeResponseList)) {
    frame.responses = std::move(*responses);
    frame.has_responses = true;
  }
  if (reader.ok() && reader.left() != 0) reader.Fail("trailing bytes");
  if (!reader.ok()) return reader.status();
  frame.kind = static_cast<RelayFrame::Kind>(kind);
  frame.process_set = static_cast<uint32_t>(process_set);
  frame.epoch = static_cast<uint32_t>(epoch);
  return frame;
}

}  // namespace horocache::control
