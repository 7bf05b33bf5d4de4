// Reads words of 64 bits from bytes that anybody may have made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace horocache::program {

// After the first failure every read gives zero.
class Words {
 public:
  explicit Words(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }
  int64_t left() const { return static_cast<int64_t>((bytes_.size() - at_) / sizeof(int64_t)); }
  bool at_end() const { return at_ == bytes_.size(); }

  // A number in [least, most].
  int64_t Take(int64_t least, int64_t most, const char* what);
  template <typename T>
  T TakeAs(int64_t least, int64_t most, const char* what) {
    return static_cast<T>(Take(least, most, what));
  }
  // Of a list whose entries have at least `words` words each: nothing is allocated for what is not there.
  int64_t Count(int64_t most, int64_t words, const char* what);
  // A number of bytes, and so many, filled up to whole words.
  std::span<const std::byte> TakeBytes(int64_t most, const char* what);
  void Fail(std::string why) {
    if (ok()) error_ = where_ + std::move(why);
  }
  // Where in the whole what follows belongs to, for messages.
  void At(std::string where) { where_ = std::move(where); }

 private:
  int64_t TakeAny();

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  std::string where_;
  std::string error_;
};

}  // namespace horocache::program
