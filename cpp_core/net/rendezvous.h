// Where the ranks of a job meet: the directory of mode 0700, the socket in it, and how neither is left behind.
//
// Note [No locks for the directory]
// Any process of this user can hold a lock for ever, so nothing here takes one. Each step is one system call that
// either happens or does not:
//   - A socket listens under a name of its own before link(2) gives it the job's name, which fails if that is taken. So
//     a socket that has the job's name and refuses connections is one whose process has ended.
//   - A name of its own that refuses connections is removed by whoever starts next. If its process lives, and is
//     about to listen, it finds the name gone and takes another.
//   - Such a stale socket is renamed first and then looked at once more. If it listens, another process has taken the
//     name meanwhile, and it goes back.
//   - rmdir(2) fails if there is a socket in the directory; who finds the directory gone makes it again.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "net/bootstrap.h"

namespace horocache::net {

struct MeetingPlace {
  std::string directory;
  std::string name;    // "/0123456789abcdef.sock"
  std::string socket;  // the directory and the name
};

// kStartup if the path does not fit into a socket's address.
StatusOr<MeetingPlace> FindMeetingPlace(const BootstrapConfig& config);

// The place that the ranks use: where another user has made the directory, whatever it is, the next of horocache-UID.1,
// .2 and so on. All ranks find the same, as a directory of theirs stays theirs. kStartup if this user's is no good, see
// CheckDirectory. Sets *missing if it is yet to be made.
StatusOr<MeetingPlace> Resolve(const MeetingPlace& wanted, bool* missing);

// kStartup unless `directory` is a directory, of this user, with mode 0700, and no symbolic link. Sets *missing and
// returns Ok if there is nothing.
Status CheckDirectory(const std::string& directory, bool* missing);

// Connects without waiting: -1 if nobody listens (yet) or the listener is busy.
StatusOr<UniqueFd> TryConnect(const MeetingPlace& wanted);

struct PeerCredentials {
  unsigned uid = ~0u;
  int pid = 0;  // 0 if it has none in this namespace
};
PeerCredentials CredentialsOf(int socket);

// Removes the socket of a listener that has ended, and the directory if that leaves it empty.
void RemoveIfStale(const MeetingPlace& wanted);

class Listener {
 public:
  // Creates the directory, takes the place of a stale socket, listens. A null pointer if another process listens.
  static StatusOr<std::unique_ptr<Listener>> Open(const MeetingPlace& wanted);
  // Removes the socket, and the directory if that leaves it empty.
  ~Listener();

  int fd() const { return socket_.get(); }
  bool intact() const { return socket_.intact(); }  // the program has not closed it
  void CloseInChild() { socket_.Close(); }          // of a fork, where the destructor must not run

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  Listener(MeetingPlace place, UniqueFd socket) : place_(std::move(place)), socket_(std::move(socket)) {}

  const MeetingPlace place_;
  UniqueFd socket_;
};

}  // namespace horocache::net
