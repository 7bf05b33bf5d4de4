#include "wire/codec.h"

#include <bit>
#include <cstring>
#include <limits>

namespace horocache::wire {
namespace {

constexpr uint8_t kMagic0 = 'H';
constexpr uint8_t kMagic1 = 'C';
enum class Kind : uint8_t { kRequestList = 'Q', kResponseList = 'R' };

constexpr int kNumStatusCodes = static_cast<int>(StatusCode::kInputFailed) + 1;

// Appends fields to a string.
class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}

  void Header(Kind kind) {
    Byte(kMagic0);
    Byte(kMagic1);
    Byte(static_cast<uint8_t>(kind));
    Byte(kProtocolVersion);
  }
  void Byte(uint8_t value) { out_->push_back(static_cast<char>(value)); }
  void Bool(bool value) { Byte(value ? 1 : 0); }
  template <typename E>
  void Enum(E value) {
    Byte(static_cast<uint8_t>(value));
  }
  void Varint(uint64_t value) {
    while (value >= 0x80) {
      Byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    Byte(static_cast<uint8_t>(value));
  }
  // Zigzag: small negative numbers are common (-1 for "none").
  void Signed(int64_t value) { Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63)); }
  void Word(uint64_t value) {
    for (int i = 0; i < 8; ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void Double(double value) { Word(std::bit_cast<uint64_t>(value)); }
  void Text(const std::string& value) {
    Varint(value.size());
    out_->append(value);
  }
  template <typename T, typename F>
  void List(const std::vector<T>& values, F&& write) {
    Varint(values.size());
    for (const T& value : values) write(value);
  }

 private:
  std::string* out_;
};

// Reads fields from untrusted bytes. After the first failure every read returns zero, ok() is false, and the first
// error is kept. Lengths are compared with the remaining bytes before anything is allocated.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return error_.empty(); }
  Status Finish(const char* what) {
    if (ok() && position_ != bytes_.size()) Fail("trailing bytes");
    if (ok()) return Status::Ok();
    return {StatusCode::kCorrupt, std::string(what) + " of " + std::to_string(bytes_.size()) +
                                      " bytes does not decode: " + error_ + " at byte " + std::to_string(failed_at_) +
                                      ". The sender is not horocache of the same version, or memory was overwritten."};
  }

  void Header(Kind kind) {
    if (Byte() != kMagic0 || Byte() != kMagic1) return Fail("wrong magic");
    if (Byte() != static_cast<uint8_t>(kind)) return Fail("wrong kind of message");
    if (Byte() != kProtocolVersion) Fail("wrong protocol version");
  }
  uint8_t Byte() {
    if (!ok() || position_ >= bytes_.size()) {
      Fail("truncated");
      return 0;
    }
    return static_cast<uint8_t>(bytes_[position_++]);
  }
  bool Bool() { return Ranged(2, "flag") != 0; }
  template <typename E>
  E Enum(int count, const char* what) {
    return static_cast<E>(Ranged(count, what));
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      if (shift == 63 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    Fail("number too large");
    return 0;
  }
  int64_t Signed() {
    const uint64_t value = Varint();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  template <typename T>
  T Unsigned() {
    const uint64_t value = Varint();
    if (value > std::numeric_limits<T>::max()) Fail("number too large");
    return ok() ? static_cast<T>(value) : 0;
  }
  uint32_t Unsigned32() { return Unsigned<uint32_t>(); }
  int32_t Signed32() {
    const int64_t value = Signed();
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
      Fail("number too large");
    }
    return ok() ? static_cast<int32_t>(value) : 0;
  }
  uint64_t Word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(Byte()) << (8 * i);
    return value;
  }
  double Double() { return std::bit_cast<double>(Word()); }
  std::string Text(size_t limit = std::numeric_limits<size_t>::max()) {
    const size_t size = Count(1);
    if (size > limit) Fail("text too long");
    if (!ok()) return {};
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + position_, size);
    position_ += size;
    return text;
  }
  // Each element takes at least `least_bytes` of input, so a count can cause an allocation only in proportion to the
  // length of the message.
  template <typename T, typename F>
  void List(size_t least_bytes, std::vector<T>* values, F&& read) {
    const size_t count = Count(least_bytes);
    values->clear();
    for (size_t i = 0; i < count && ok(); ++i) values->push_back(read());
  }

 private:
  void Fail(const char* why) {
    if (!ok()) return;
    error_ = why;
    failed_at_ = position_;
  }
  uint8_t Ranged(int count, const char* what) {
    const uint8_t value = Byte();
    if (value >= count) {
      Fail(what);
      return 0;
    }
    return value;
  }
  size_t Count(size_t least_bytes) {
    const uint64_t count = Varint();
    if (count > (bytes_.size() - position_) / least_bytes) Fail("count exceeds the message");
    return ok() ? static_cast<size_t>(count) : 0;
  }

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  size_t failed_at_ = 0;
  std::string error_;
};

void Write(Writer& out, const TensorMeta& tensor) {
  out.Text(tensor.name);
  out.Enum(tensor.dtype);
  out.List(tensor.shape, [&](int64_t dimension) { out.Signed(dimension); });
}

TensorMeta ReadTensor(Reader& in) {
  TensorMeta tensor;
  tensor.name = in.Text(kMaxNameBytes);
  tensor.dtype = in.Enum<DType>(kNumDTypes, "unknown dtype");
  in.List(1, &tensor.shape, [&] { return in.Signed(); });
  return tensor;
}

void Write(Writer& out, const Signature& signature) {
  out.Enum(signature.op);
  out.Enum(signature.reduce_op);
  out.Enum(signature.device_class);
  out.Signed(signature.root);
  out.Signed(signature.priority);
  out.Double(signature.prescale);
  out.Double(signature.postscale);
  out.Enum(signature.divide_by);
  out.Text(signature.layers);
  out.Text(signature.backend);
  out.Text(signature.name);
  out.List(signature.tensors, [&](const TensorMeta& tensor) { Write(out, tensor); });
  out.Text(signature.defect);
  out.Bool(signature.input_failed);
}

Signature ReadSignature(Reader& in) {
  Signature signature;
  signature.op = in.Enum<Op>(kNumOps, "unknown operation");
  signature.reduce_op = in.Enum<ReduceOp>(kNumReduceOps, "unknown reduce operation");
  signature.device_class = in.Enum<DeviceClass>(kNumDeviceClasses, "unknown device class");
  signature.root = in.Signed32();
  signature.priority = in.Signed32();
  signature.prescale = in.Double();
  signature.postscale = in.Double();
  signature.divide_by = in.Enum<DivideBy>(kNumDivideBys, "unknown way to divide");
  signature.layers = in.Text(kMaxNameBytes);
  signature.backend = in.Text(kMaxNameBytes);
  signature.name = in.Text(kMaxNameBytes);
  in.List(3, &signature.tensors, [&] { return ReadTensor(in); });
  signature.defect = in.Text(kMaxNameBytes);
  signature.input_failed = in.Bool();
  return signature;
}

void Write(Writer& out, const Request& request) {
  Write(out, request.signature);
  out.Varint(request.changed_bit);
}

// The fewest bytes that a signature takes: four enums, root, priority, two doubles, four empty texts, a flag, and a
// count of no tensors.
constexpr size_t kLeastSignatureBytes = 4 + 2 + 16 + 4 + 1 + 1;

Request ReadRequest(Reader& in) {
  Request request;
  request.signature = ReadSignature(in);
  request.changed_bit = in.Unsigned32();
  return request;
}

void Write(Writer& out, const Response& response) {
  Write(out, response.signature);
  out.Byte(response.choice.backend);
  out.Byte(response.choice.algorithm);
  out.Varint(response.choice.lane);
  out.Enum(response.choice.chosen_by);
  out.Enum(response.code);
  out.Text(response.message);
  out.Signed(response.last_joined);
  out.List(response.ranks, [&](int32_t rank) { out.Signed(rank); });
}

Response ReadResponse(Reader& in) {
  Response response;
  response.signature = ReadSignature(in);
  response.choice.backend = in.Byte();
  response.choice.algorithm = in.Byte();
  response.choice.lane = in.Unsigned<uint16_t>();
  response.choice.chosen_by = in.Enum<ChosenBy>(kNumChosenBys, "unknown reason for a choice");
  response.code = in.Enum<StatusCode>(kNumStatusCodes, "unknown status");
  response.message = in.Text();
  response.last_joined = in.Signed32();
  in.List(1, &response.ranks, [&] { return in.Signed32(); });
  return response;
}

constexpr size_t kLeastRequestBytes = kLeastSignatureBytes + 1;
constexpr size_t kLeastResponseBytes = kLeastSignatureBytes + 8;

}  // namespace

void Encode(const RequestList& list, std::string* out) {
  Writer writer(out);
  const auto write_bit = [&](CacheBit bit) { writer.Varint(bit); };
  const auto write_word = [&](uint64_t word) { writer.Word(word); };
  writer.Header(Kind::kRequestList);
  writer.Varint(list.process_set);
  writer.Varint(list.epoch);
  writer.Varint(list.round);
  writer.Signed(list.rank);
  writer.Bool(list.leaving);
  writer.Bool(list.all_waiting);
  writer.Bool(list.computes);
  writer.Text(list.error);
  writer.List(list.requests, [&](const Request& request) { Write(writer, request); });
  writer.List(list.stalled_bits, write_bit);
  writer.List(list.pending_bits, write_bit);
  writer.Text(list.note);
  writer.Text(list.last_done);
  writer.List(list.cache_hash, write_word);
}

StatusOr<RequestList> DecodeRequestList(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const auto read_bit = [&] { return in.Unsigned32(); };
  const auto read_word = [&] { return in.Word(); };
  RequestList list;
  in.Header(Kind::kRequestList);
  list.process_set = in.Unsigned32();
  list.epoch = in.Unsigned32();
  list.round = in.Varint();
  list.rank = in.Signed32();
  list.leaving = in.Bool();
  list.all_waiting = in.Bool();
  list.computes = in.Bool();
  list.error = in.Text();
  in.List(kLeastRequestBytes, &list.requests, [&] { return ReadRequest(in); });
  in.List(1, &list.stalled_bits, read_bit);
  in.List(1, &list.pending_bits, read_bit);
  list.note = in.Text();
  list.last_done = in.Text(kMaxNameBytes);
  in.List(8, &list.cache_hash, read_word);
  HC_RETURN_IF_ERROR(in.Finish("a request list"));
  return list;
}

void Encode(const ResponseList& list, std::string* out) {
  Writer writer(out);
  const auto write_rank = [&](int32_t rank) { writer.Signed(rank); };
  writer.Header(Kind::kResponseList);
  writer.Varint(list.process_set);
  writer.Varint(list.epoch);
  writer.Varint(list.round);
  writer.List(list.erase, [&](CacheBit bit) { writer.Varint(bit); });
  writer.List(list.responses, [&](const Response& response) { Write(writer, response); });
  writer.List(list.joined, write_rank);
  writer.Enum(list.divide_by);
  writer.List(list.left, write_rank);
  writer.Text(list.report);
  writer.List(list.late_ranks, write_rank);
  writer.Text(list.settings);
  writer.Enum(list.fatal);
}

StatusOr<ResponseList> DecodeResponseList(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const auto read_rank = [&] { return in.Signed32(); };
  ResponseList list;
  in.Header(Kind::kResponseList);
  list.process_set = in.Unsigned32();
  list.epoch = in.Unsigned32();
  list.round = in.Varint();
  in.List(1, &list.erase, [&] { return in.Unsigned32(); });
  in.List(kLeastResponseBytes, &list.responses, [&] { return ReadResponse(in); });
  in.List(1, &list.joined, read_rank);
  list.divide_by = in.Enum<DivideBy>(kNumDivideBys, "unknown way to divide");
  in.List(1, &list.left, read_rank);
  list.report = in.Text();
  in.List(1, &list.late_ranks, read_rank);
  list.settings = in.Text();
  list.fatal = in.Enum<StatusCode>(kNumStatusCodes, "unknown status");
  HC_RETURN_IF_ERROR(in.Finish("a response list"));
  return list;
}

}  // namespace horocache::wire
