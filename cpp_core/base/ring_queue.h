// A queue in a ring that grows and never shrinks, so that a steady stream of elements allocates nothing. (std::deque
// allocates and frees a block whenever it crosses the end of one.)
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace horocache {

template <typename T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return at(0); }
  const T& front() const { return at(0); }
  T& back() { return at(size_ - 1); }
  // The elements by age; at(0) is the oldest.
  T& at(size_t i) { return ring_[(first_ + i) % ring_.size()]; }
  const T& at(size_t i) const { return ring_[(first_ + i) % ring_.size()]; }

  void push_back(T value) {
    if (size_ == ring_.size()) Grow();
    ++size_;
    back() = std::move(value);
  }
  void pop_front() {
    front() = T();
    first_ = (first_ + 1) % ring_.size();
    --size_;
  }
  // Removes the elements that are equal to `value`; the others keep their order.
  void Erase(const T& value) {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (at(i) == value) continue;
      if (kept != i) at(kept) = std::move(at(i));
      ++kept;
    }
    for (size_t i = kept; i < size_; ++i) at(i) = T();
    size_ = kept;
  }

 private:
  void Grow() {
    std::vector<T> larger(ring_.empty() ? 8 : 2 * ring_.size());
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move(at(i));
    ring_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace horocache
