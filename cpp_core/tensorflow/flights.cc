#include "tensorflow/flights.h"

#include <cstdlib>
#include <utility>

namespace horocache::tensorflow {
namespace {

// Bytes. TensorFlow copies memory with a smaller alignment and deletes the original at once.
constexpr size_t kAlignment = 64;

}  // namespace

Flights& Flights::Get() {
  static Flights* const flights = new Flights;
  return *flights;
}

OwnedTensor Flights::Add(std::unique_ptr<Flight> flight) {
  auto* number = static_cast<int64_t*>(std::aligned_alloc(kAlignment, kAlignment));
  if (number == nullptr) std::abort();
  {
    const MutexLock lock(mutex_);
    *number = next_++;
    flying_.emplace(*number, std::move(flight));
  }
  return OwnedTensor(Tf().NewTensor(kInt64, nullptr, 0, number, sizeof(*number), &Flights::Dropped, this));
}

std::unique_ptr<Flight> Flights::Take(int64_t number) {
  const MutexLock lock(mutex_);
  const auto found = flying_.find(number);
  if (found == flying_.end()) return nullptr;
  std::unique_ptr<Flight> flight = std::move(found->second);
  flying_.erase(found);
  return flight;
}

void Flights::Dropped(void* number, size_t, void* self) {
  auto* flights = static_cast<Flights*>(self);
  if (flights->keeps_all_.load()) return;
  std::unique_ptr<Flight> flight = flights->Take(*static_cast<int64_t*>(number));
  std::free(number);
  if (flight != nullptr) flights->Abandon(std::move(flight));
}

void Flights::Abandon(std::unique_ptr<Flight> flight) {
  const MutexLock lock(mutex_);
  abandoned_.push_back(std::move(flight));
}

void Flights::Reap(const Bridge::Use& use) {
  if (keeps_all_.load()) return;
  std::vector<std::unique_ptr<Flight>> over;  // freed without the lock: that may delete a number's tensor (Dropped)
  const MutexLock lock(mutex_);
  std::erase_if(abandoned_, [&](std::unique_ptr<Flight>& flight) {
    const bool is_over = flight->session != use.session() || use.api().poll(use.runtime(), flight->handle) != 0;
    if (!is_over) return false;
    if (flight->session == use.session()) use.api().consume(use.runtime(), flight->handle);
    over.push_back(std::move(flight));
    return true;
  });
}

void Flights::Clear() {
  std::vector<std::unique_ptr<Flight>> abandoned;
  const MutexLock lock(mutex_);
  abandoned.swap(abandoned_);
}

}  // namespace horocache::tensorflow
