// Builds a text from many short parts, with one check for room per Append. A timeline appends some thirty parts for
// each event, and a job may have no core to spare: a check for each part, as in std::string, would cost too much.
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace horocache::observe {

// Parts that are converted when they are appended.
struct UpperCase {
  std::string_view ascii;
};
struct Microseconds {
  int64_t ns;  // appended in us with three decimals
};

class TextBuilder {
 public:
  template <typename... Parts>
  void Append(const Parts&... parts) {
    const size_t most = (Most(parts) + ...);
    if (text_.size() - size_ < most) text_.resize(std::max(2 * text_.size(), size_ + most));
    char* at = text_.data() + size_;
    ((at = Put(at, parts)), ...);
    size_ = static_cast<size_t>(at - text_.data());
  }
  bool empty() const { return size_ == 0; }

  // Exchanges the text for the memory of `text`, so that neither side allocates: touching new pages costs as much as
  // writing the text. The builder is empty afterwards.
  void Swap(std::string* text) {
    text_.resize(size_);
    std::swap(text_, *text);
    size_ = 0;
  }

 private:
  static constexpr size_t kDigits = 20;  // of the longest integer, with its sign

  static size_t Most(char) { return 1; }
  static size_t Most(std::string_view text) { return text.size(); }
  static size_t Most(UpperCase text) { return text.ascii.size(); }
  static size_t Most(Microseconds) { return kDigits + 4; }
  template <std::integral T>
  static size_t Most(T) {
    return kDigits;
  }

  static char* Put(char* at, char c) {
    *at = c;
    return at + 1;
  }
  static char* Put(char* at, std::string_view text) { return std::copy(text.begin(), text.end(), at); }
  static char* Put(char* at, UpperCase text) {
    return std::ranges::transform(text.ascii, at,
                                  [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; })
        .out;
  }
  static char* Put(char* at, Microseconds time) {
    const int64_t rest = time.ns % 1000;
    const auto digit = [rest](int64_t unit) { return static_cast<char>('0' + rest / unit % 10); };
    at = Put(at, time.ns / 1000);
    *at++ = '.';
    for (const int64_t unit : {100, 10, 1}) *at++ = digit(unit);
    return at;
  }
  template <std::integral T>
  static char* Put(char* at, T value) {
    return std::to_chars(at, at + kDigits, value).ptr;
  }

  std::string text_;  // its first size_ bytes are the text, the rest is room
  size_t size_ = 0;
};

}  // namespace horocache::observe
