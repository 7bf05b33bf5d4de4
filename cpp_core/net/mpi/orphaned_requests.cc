#include "net/mpi/orphaned_requests.h"

#include <vector>

#include "base/mutex.h"

namespace horocache::net {

void KeepOwnedForMpi(std::shared_ptr<void> memory) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  MutexLock lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace horocache::net
