// Where the ranks of a job meet: the directory of mode 0700, the socket in it, and how neither is left behind.
//
// Note [One lock for the directory]
// Whoever creates, removes or replaces something in the directory holds flock(2) on it, and checks after locking that
// the path still leads to what was locked. So a stale socket is never confused with a fresh one, and the directory is
// not removed under somebody who is about to bind. The kernel drops the lock when a process ends.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "net/bootstrap.h"

namespace horocache::net {

struct MeetingPlace {
  std::string directory;
  std::string socket;
};

// kStartup if the path does not fit into a socket's address.
StatusOr<MeetingPlace> FindMeetingPlace(const BootstrapConfig& config);

// kStartup unless `directory` is a directory, of this user, with mode 0700, and no symbolic link. Sets *missing and
// returns Ok if there is nothing.
Status CheckDirectory(const std::string& directory, bool* missing);

// Connects without waiting: -1 if nobody listens (yet) or the listener is busy.
StatusOr<UniqueFd> TryConnect(const MeetingPlace& place);

struct PeerCredentials {
  unsigned uid = ~0u;
  int pid = 0;  // 0 if it has none in this namespace
};
PeerCredentials CredentialsOf(int socket);

// Removes the socket of a listener that has ended, and the directory if that leaves it empty.
void RemoveIfStale(const MeetingPlace& place);

class Listener {
 public:
  // Creates the directory, takes the place of a stale socket, listens. A null pointer if another process listens.
  static StatusOr<std::unique_ptr<Listener>> Open(const MeetingPlace& place, int64_t deadline_ns);
  // Removes the socket, and the directory if that leaves it empty.
  ~Listener();

  int fd() const { return socket_.get(); }

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  Listener(MeetingPlace place, UniqueFd socket) : place_(std::move(place)), socket_(std::move(socket)) {}

  const MeetingPlace place_;
  UniqueFd socket_;
};

}  // namespace horocache::net
