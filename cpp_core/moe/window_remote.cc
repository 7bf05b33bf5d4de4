// Part of Window: what this rank writes to ranks on other hosts.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "moe/window.h"
#include "moe/window_layout.h"

namespace horocache::moe {

Status Window::CheckFits(int peer) const {
  if (Fits(step_.rows)) return Status::Ok();
  const int64_t row_bytes = std::max<int64_t>(row_bytes_[0], 1);
  const int64_t result_row_bytes = std::max<int64_t>(row_bytes_[1], 1);
  const int64_t room = std::min(geometry_.batch_bytes / row_bytes, geometry_.result_bytes / result_row_bytes);
  return InvalidArgumentError(
      Name() + " and " + names_[static_cast<size_t>(peer)] + " are on different hosts and have " +
      std::to_string(step_.rows) + " tokens to exchange in " + NameOfTag(tag_) + ", but their window has room for " +
      std::to_string(room) + "; give the layer max_tokens, the most tokens of a rank in any call");
}

// Memory for the caller to write, until the step is published.
std::span<std::byte> Window::Stage(int64_t bytes) {
  staged_ = blocks_.carrier->Take(static_cast<size_t>(bytes));
  return staged_.span();
}

void Window::PostBatch(int host) {
  const int own = exchange_.rank();
  if (step_.rows > 0) {
    blocks_.carrier->Post({.peer = host, .offset = BatchAt(host, own), .payload = std::move(staged_)});
  }
  CellWord word{};
  WriteBatchWord(&word);
  // All of it but the word, which follows.
  constexpr size_t kWordBytes = sizeof(word.word);
  RemoteBuffer rest = blocks_.carrier->Take(sizeof(word) - kWordBytes);
  std::memcpy(rest.memory.get(), reinterpret_cast<const std::byte*>(&word) + kWordBytes, rest.bytes);
  const size_t at = BatchWordAt(host, own);
  blocks_.carrier->Post({.peer = host,
                         .offset = at + kWordBytes,
                         .payload = std::move(rest),
                         .word_offset = at,
                         .word = word.word.load(std::memory_order_relaxed)});
}

void Window::PostResult(int peer) {
  const int own = exchange_.rank();
  blocks_.carrier->Post({.peer = peer,
                         .offset = ResultAt(peer, own),
                         .payload = std::move(staged_),
                         .word_offset = ResultWordAt(peer, own),
                         .word = WordOf(exchange_.round(), step_.rows)});
}

void Window::PostWord(int peer, size_t offset, uint64_t word) {
  blocks_.carrier->Post({.peer = peer, .offset = 0, .payload = {}, .word_offset = offset, .word = word});
}

void Window::PostFailure(int peer, const Status& why) {
  const size_t at = OffsetOf<Failure>(peer, &Places::failures, exchange_.rank());
  RemoteBuffer record = blocks_.carrier->Take(sizeof(Failure) - offsetof(Failure, code));
  std::memset(record.memory.get(), 0, record.bytes);
  const auto put = [&](size_t offset, const void* data, size_t bytes) {
    std::memcpy(record.memory.get() + offset - offsetof(Failure, code), data, bytes);
  };
  const auto code = static_cast<int32_t>(why.code());
  const auto bytes = static_cast<uint32_t>(std::min(why.message().size(), Failure::kMostBytes));
  put(offsetof(Failure, code), &code, sizeof(code));
  put(offsetof(Failure, bytes), &bytes, sizeof(bytes));
  put(offsetof(Failure, text), why.message().data(), bytes);
  blocks_.carrier->Post({.peer = peer,
                         .offset = at + offsetof(Failure, code),
                         .payload = std::move(record),
                         .word_offset = at,
                         .word = failed_round_});
}

}  // namespace horocache::moe
