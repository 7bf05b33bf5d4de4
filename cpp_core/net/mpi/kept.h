// Memory that an MPI library may still read or write, because somebody gave up on a request: see Note [A request that
// is late]. Threads: any.
#pragma once

#include <memory>
#include <utility>

namespace horocache::net {

// Until the process ends.
void KeepOwnedForMpi(std::shared_ptr<void> memory);

// What is moved here stays at its address: a container's elements, not the container.
template <typename Container>
void KeepForMpi(Container&& memory) {
  KeepOwnedForMpi(std::make_shared<Container>(std::move(memory)));
}

}  // namespace horocache::net
