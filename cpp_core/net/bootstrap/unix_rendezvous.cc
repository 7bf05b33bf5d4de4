#include "net/bootstrap/unix_rendezvous.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/text.h"
#include "net/bootstrap/contenders.h"
#include "net/bootstrap/open_files.h"

namespace horocache::net {
namespace {

constexpr const char* kKnob = "HOROCACHE_RENDEZVOUS_DIR";
constexpr int kBacklog = 4096;
// Directories that are tried if other users own the first ones.
constexpr int kMostDirectories = 16;
// Attempts at a step that another process can undo.
constexpr int kMostAttempts = 1000;
// How long RemoveIfStale waits for the listener of an ended process to close.
constexpr int64_t kCleanupNs = 200 * kNsPerMs;
// The age from which a job's socket is probed. Most start-ups take less, so younger sockets are left alone.
constexpr std::chrono::minutes kOldSocket(1);
constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;

std::string Quoted(const std::string& path) { return "'" + Printable(path) + "'"; }

// FNV-1a: short, and the same in every build.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd NewSocket() { return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

Status SocketError() { return StartupError("cannot open a Unix socket for start-up: " + ErrorText(errno)); }

Status CannotMake(const std::string& directory, int error) {
  return StartupError("cannot create the directory " + Quoted(directory) + " for the start-up socket: " +
                      std::strerror(error) + "; set " + kKnob + " to a directory that exists and is writable");
}

Status MakeDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return Status::Ok();
  return CannotMake(directory, errno);
}

// kStartup if rank 0 cannot make the directory, as far as another rank can see; without the error, that rank would wait
// in vain.
Status CheckParent(const std::string& directory) {
  const size_t slash = directory.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : directory.substr(0, slash + 1);
  if (faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return Status::Ok();
  return CannotMake(directory, errno);
}

// The place in `directory`, which may differ from the one that was wanted.
StatusOr<SocketPlace> At(SocketPlace place, const std::string& directory) {
  place.directory = directory;
  place.socket = directory + place.name;
  if (place.socket.size() <= kMaxPath) return place;
  return StartupError("the start-up socket's path " + Quoted(place.socket) + " has " +
                      std::to_string(place.socket.size()) + " bytes, a socket's may have " + std::to_string(kMaxPath) +
                      "; set " + kKnob + " (or TMPDIR) to a shorter directory");
}

Status BindError(const std::string& path) {
  const std::string advice =
      OutOfFiles(errno) ? "" : std::string("; set ") + kKnob + " to a directory on a local file system";
  return StartupError("cannot bind the start-up socket " + Quoted(path) + ": " + ErrorText(errno) + advice);
}

// A private name in the directory: no other process makes the same.
std::string NewName(const std::string& directory) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number))
    number = static_cast<uint64_t>(NowNs()) ^ Hash(directory);
  char name[32];
  std::snprintf(name, sizeof(name), "/%016llx.new", static_cast<unsigned long long>(number));
  return directory + name;
}

// Returns 0 if a process listens, else the errno of connecting.
int Probe(const std::string& path) {
  const UniqueFd probe = NewSocket();
  if (probe.get() < 0) return errno;
  const sockaddr_un address = Address(path);
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

// Removes a socket without a listener. Renames it to a private name and probes it again, because another process may
// have taken its place meanwhile; then the socket gets its name back.
void TakeAway(const std::string& directory, const std::string& path) {
  const std::string aside = NewName(directory);
  if (rename(path.c_str(), aside.c_str()) != 0) return;  // another process was faster
  if (Probe(aside) != ECONNREFUSED) (void)!link(aside.c_str(), path.c_str());
  unlink(aside.c_str());
}

// Removes the sockets of jobs that were killed during start-up. See Note [Lock-free rendezvous directory].
void RemoveOldSockets(const std::string& directory) {
  namespace fs = std::filesystem;
  const auto oldest = fs::file_time_type::clock::now() - kOldSocket;
  std::error_code end, gone;
  for (fs::directory_iterator entry(directory, end); !end && entry != fs::directory_iterator(); entry.increment(end)) {
    const std::string path = entry->path().string();
    const bool has_no_job = entry->path().extension() == ".new";
    if ((!has_no_job && entry->path().extension() != ".sock") || path.size() > kMaxPath) continue;
    const bool is_asked = has_no_job || (entry->last_write_time(gone) < oldest && !gone);
    if (is_asked && Probe(path) == ECONNREFUSED) TakeAway(directory, path);
  }
}

enum class Bound { kYes, kBusy, kGone, kFailed };

// Gives the listening socket `fresh` the name `path`, unless another listening socket has it. errno says what failed.
Bound TakeName(const std::string& directory, const std::string& fresh, const std::string& path) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (link(fresh.c_str(), path.c_str()) == 0) return Bound::kYes;
    if (errno == ENOENT) return Bound::kGone;
    if (errno != EEXIST) return Bound::kFailed;
    errno = Probe(path);
    if (errno == 0 || errno == EAGAIN) return Bound::kBusy;
    if (errno == ECONNREFUSED) {
      TakeAway(directory, path);
    } else if (errno != ENOENT) {
      return Bound::kFailed;
    }
  }
  return Bound::kFailed;
}

// See Note [Lock-free rendezvous directory]. kGone: another process has removed the empty directory or the private
// name.
Bound BindSocket(int fd, const SocketPlace& place) {
  const std::string fresh = NewName(place.directory);
  const sockaddr_un address = Address(fresh);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return errno == ENOENT ? Bound::kGone : Bound::kFailed;
  }
  const Bound outcome = listen(fd, kBacklog) == 0 ? TakeName(place.directory, fresh, place.socket) : Bound::kFailed;
  const int error = errno;
  unlink(fresh.c_str());
  errno = error;
  return outcome;
}

}  // namespace

std::string OwnDirectory(const std::string& base) { return base + "/horocache-" + std::to_string(geteuid()); }

StatusOr<SocketPlace> FindRendezvous(const BootstrapConfig& config) {
  SocketPlace place;
  place.directory = config.directory;
  if (place.directory.empty()) {
    const std::map<std::string, std::string> environment = ReadEnvironment();
    const auto found = environment.find("TMPDIR");
    const std::string base = found == environment.end() || found->second.empty() ? "/tmp" : found->second;
    place.directory = OwnDirectory(base);
  }
  std::string job = config.identity.job + '\n' + std::to_string(config.handshake.epoch);
  if (!config.identity.shared_claim.empty())
    job += '\n' + PidNamespace();  // see Note [Jobs that share an address and port]
  char name[32];
  std::snprintf(name, sizeof(name), "/%016llx.sock", static_cast<unsigned long long>(Hash(job)));
  place.name = name;
  return At(place, place.directory);
}

StatusOr<SocketPlace> Resolve(const SocketPlace& wanted, bool* missing) {
  for (int number = 0; number < kMostDirectories; ++number) {
    const std::string directory = wanted.directory + (number == 0 ? "" : "." + std::to_string(number));
    struct stat found{};
    if (lstat(directory.c_str(), &found) == 0 && found.st_uid != geteuid()) continue;
    HC_RETURN_IF_ERROR(CheckDirectory(directory, missing));
    return At(wanted, directory);
  }
  return StartupError(
      "the directory " + Quoted(wanted.directory) + " for the start-up socket belongs to another user, " +
      "and so do the " + std::to_string(kMostDirectories - 1) + " that would take its place (" +
      Quoted(wanted.directory + ".1") + ", ...); set " + kKnob + " to a directory that only this user may write to");
}

Status CheckDirectory(const std::string& directory, bool* missing) {
  struct stat found{};
  const int error = lstat(directory.c_str(), &found) == 0 ? 0 : errno;
  *missing = error == ENOENT;
  if (*missing) return Status::Ok();
  const std::string advice = std::string("; remove it, or set ") + kKnob + " to another directory";
  const std::string subject = "the directory " + Quoted(directory) + " for the start-up socket ";
  if (error != 0) return StartupError(subject + "cannot be read: " + std::strerror(error) + advice);
  if (S_ISLNK(found.st_mode)) return StartupError(subject + "is a symbolic link" + advice);
  if (!S_ISDIR(found.st_mode)) return StartupError(subject + "is not a directory" + advice);
  if (found.st_uid != geteuid()) {
    return StartupError(subject + "belongs to user " + std::to_string(found.st_uid) + ", not to this user (" +
                        std::to_string(geteuid()) + ")" + advice);
  }
  if ((found.st_mode & 07777) != 0700) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", found.st_mode & 07777);
    return StartupError(subject + "has mode " + mode + "; only mode 0700 keeps other users out (chmod 700)" + advice);
  }
  return Status::Ok();
}

StatusOr<UniqueFd> TryConnect(const SocketPlace& wanted) {
  bool missing = false;
  const StatusOr<SocketPlace> place = Resolve(wanted, &missing);
  if (!place.ok()) return place.status();
  if (missing) {
    HC_RETURN_IF_ERROR(CheckParent(place->directory));
    return UniqueFd();
  }
  UniqueFd fd = NewSocket();
  if (fd.get() < 0) return SocketError();
  const sockaddr_un address = Address(place->socket);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return UniqueFd();
  return StartupError("cannot connect to the start-up socket " + Quoted(place->socket) + ": " + std::strerror(errno));
}

PeerCredentials CredentialsOf(int socket) {
  ucred found{};
  socklen_t size = sizeof(found);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) return {};
  return {found.uid, found.pid};
}

void RemoveIfStale(const SocketPlace& wanted) {
  bool missing = false;
  const StatusOr<SocketPlace> place = Resolve(wanted, &missing);
  if (!place.ok() || missing) return;
  // A process that ends closes its descriptors in any order, so its listener may outlive its links for a moment.
  const int64_t deadline_ns = NowNs() + kCleanupNs;
  int error = Probe(place->socket);
  for (; error != ECONNREFUSED && error != ENOENT; error = Probe(place->socket)) {
    if (NowNs() >= deadline_ns) return;  // the listener is alive
    Nap(kNsPerMs);
  }
  if (error == ECONNREFUSED) TakeAway(place->directory, place->socket);
  rmdir(place->directory.c_str());  // fails if another job's socket is in it
}

StatusOr<std::unique_ptr<Listener>> Listener::Open(const SocketPlace& wanted) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    bool missing = false;
    const StatusOr<SocketPlace> place = Resolve(wanted, &missing);
    if (!place.ok()) return place.status();
    if (missing) HC_RETURN_IF_ERROR(MakeDirectory(place->directory));
    UniqueFd socket = NewSocket();
    if (socket.get() < 0) {
      const Status failed = SocketError();
      rmdir(place->directory.c_str());  // fails if another job's socket is in it
      return failed;
    }
    const Bound bound = missing ? Bound::kGone : BindSocket(socket.get(), *place);
    if (bound == Bound::kGone) continue;  // the directory may be another one now
    if (bound == Bound::kBusy) return std::unique_ptr<Listener>();
    if (bound == Bound::kFailed) {
      const Status failed = BindError(place->socket);
      rmdir(place->directory.c_str());
      return failed;
    }
    RemoveOldSockets(place->directory);
    return std::unique_ptr<Listener>(new Listener(*place, std::move(socket)));
  }
  return StartupError("the directory " + Quoted(wanted.directory) +
                      " for the start-up socket vanishes as soon as it is made; set " + kKnob +
                      " to another directory");
}

Listener::~Listener() {
  unlink(place_.socket.c_str());  // this process still listens, so the name is still its own
  socket_.Close();
  rmdir(place_.directory.c_str());  // fails if another job's socket is in it
}

}  // namespace horocache::net
