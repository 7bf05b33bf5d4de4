// Keeps memory that an MPI library may still read or write after a rank has given up on a request: see Note [Requests
// past their deadline] in communicator.h. Threads: any.
#pragma once

#include <memory>
#include <utility>

namespace horocache::net {

// Keeps `memory` until the process ends.
void KeepOwnedForMpi(std::shared_ptr<void> memory);

// Keeps the elements of a container, at their addresses; the container itself moves.
template <typename Container>
void KeepUntilExit(Container&& memory) {
  KeepOwnedForMpi(std::make_shared<Container>(std::move(memory)));
}

}  // namespace horocache::net
