// The socket over which the ranks of a job find each other, its directory of mode 0700, and their removal.
//
// Note [Lock-free rendezvous directory]
// Any process of this user could hold a lock for ever, so nothing here takes one. Each step is one system call that
// either happens or does not:
//   - A socket listens under a private name before link(2) gives it the job's name, which fails if the name is taken.
//     So a socket that has the job's name and refuses connections belongs to a process that has ended.
//   - The next process that starts up removes private names that refuse connections. If the owner of such a name is
//     alive and only about to listen, it finds the name gone and takes another.
//   - Such a stale socket is renamed first and then probed once more. If it listens, another process has taken the name
//     meanwhile, and the socket gets the name back.
//   - rmdir(2) fails if there is a socket in the directory. A process that finds the directory gone makes it again.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "net/bootstrap/bootstrap.h"

namespace horocache::net {

struct SocketPlace {
  std::string directory;
  std::string name;    // "/0123456789abcdef.sock"
  std::string socket;  // the directory and the name
};

// The place that the configuration names. kStartup if the path does not fit into a socket's address.
StatusOr<SocketPlace> FindRendezvous(const BootstrapConfig& config);

// The place that the ranks use. Skips a directory (or file) of another user and tries the same name with .1, .2 and so
// on. All ranks find the same directory, because it keeps its owner. kStartup if this user's directory is unusable (see
// CheckDirectory). Sets *missing if the directory does not exist yet.
StatusOr<SocketPlace> Resolve(const SocketPlace& wanted, bool* missing);

// kStartup unless `directory` is a directory of this user with mode 0700 and not a symbolic link. If nothing has this
// name, sets *missing and returns Ok.
Status CheckDirectory(const std::string& directory, bool* missing);

// Connects without waiting; -1 if no process listens (yet) or the listener is busy.
StatusOr<UniqueFd> TryConnect(const SocketPlace& wanted);

struct PeerCredentials {
  unsigned uid = ~0u;
  int pid = 0;  // 0 if the peer has none in this PID namespace
};
PeerCredentials CredentialsOf(int socket);

// Removes the socket of a listener that has ended, and the directory if it is then empty.
void RemoveIfStale(const SocketPlace& wanted);

class Listener {
 public:
  // Creates the directory, replaces a stale socket and listens. A null pointer if another process listens.
  static StatusOr<std::unique_ptr<Listener>> Open(const SocketPlace& wanted);
  // Removes the socket, and the directory if it is then empty.
  ~Listener();

  int fd() const { return socket_.get(); }
  bool intact() const { return socket_.intact(); }  // true: the program has not closed it
  void CloseInChild() { socket_.Close(); }          // for the child of a fork, where the destructor must not run

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  Listener(SocketPlace place, UniqueFd socket) : place_(std::move(place)), socket_(std::move(socket)) {}

  const SocketPlace place_;
  UniqueFd socket_;
};

}  // namespace horocache::net
