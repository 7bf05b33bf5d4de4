#include "program/word_reader.h"

#include <cstring>
#include <utility>

#include "base/memory.h"

namespace horocache::program {

int64_t Words::TakeAny() {
  if (!ok()) return 0;
  if (bytes_.size() - at_ < sizeof(int64_t)) {
    Fail("it ends too early");
    return 0;
  }
  int64_t value = 0;
  std::memcpy(&value, bytes_.data() + at_, sizeof(value));
  at_ += sizeof(value);
  return value;
}

int64_t Words::Take(int64_t least, int64_t most, const char* what) {
  const int64_t value = TakeAny();
  if (ok() && (value < least || value > most)) {
    Fail(std::string(what) + " is " + std::to_string(value) + ", and not from " + std::to_string(least) + " to " +
         std::to_string(most));
  }
  return ok() ? value : 0;
}

int64_t Words::Count(int64_t most, int64_t words, const char* what) {
  const int64_t count = Take(0, most, what);
  if (ok() && count > left() / words) Fail(std::string(what) + " is " + std::to_string(count) + ", more than follow");
  return ok() ? count : 0;
}

std::span<const std::byte> Words::TakeBytes(int64_t most, const char* what) {
  const int64_t count = Take(0, most, what);
  const int64_t padded = RoundUp(count, static_cast<int64_t>(sizeof(int64_t)));
  if (ok() && padded > left() * static_cast<int64_t>(sizeof(int64_t))) {
    Fail(std::string(what) + " is " + std::to_string(count) + ", more bytes than follow");
  }
  if (!ok()) return {};
  const std::span<const std::byte> taken = bytes_.subspan(at_, static_cast<size_t>(count));
  at_ += static_cast<size_t>(padded);
  return taken;
}

}  // namespace horocache::program
