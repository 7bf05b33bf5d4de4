// Reads 64-bit words from untrusted bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace horocache::program {

// A bounds-checked reader. After the first failure every read returns zero.
class Words {
 public:
  explicit Words(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }
  int64_t left() const { return static_cast<int64_t>((bytes_.size() - at_) / sizeof(int64_t)); }
  bool at_end() const { return at_ == bytes_.size(); }

  // Returns the next word. Fails if it is outside of [least, most].
  int64_t Take(int64_t least, int64_t most, const char* what);
  template <typename T>
  T TakeAs(int64_t least, int64_t most, const char* what) {
    return static_cast<T>(Take(least, most, what));
  }
  // Returns the length of a list whose entries have at least `words` words each. Fails if the remaining words are too
  // few for it, so the caller never allocates memory for missing entries.
  int64_t Count(int64_t most, int64_t words, const char* what);
  // Reads a byte count of at most `most`, and as many bytes, which are padded to whole words.
  std::span<const std::byte> TakeBytes(int64_t most, const char* what);
  void Fail(std::string why) {
    if (ok()) error_ = where_ + std::move(why);
  }
  // Names the section that is read next; error messages begin with it.
  void At(std::string where) { where_ = std::move(where); }

 private:
  int64_t TakeAny();

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  std::string where_;
  std::string error_;
};

}  // namespace horocache::program
