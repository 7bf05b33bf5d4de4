#include "net/rendezvous.h"

#include <fcntl.h>
#include <sys/file.h>
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
#include "net/open_files.h"

namespace horocache::net {
namespace {

constexpr const char* kKnob = "HOROCACHE_RENDEZVOUS_DIR";
constexpr int kBacklog = 4096;
constexpr int64_t kCleanupNs = 200 * kNsPerMs;
constexpr std::chrono::minutes kOldSocket(1);  // most start-ups take less, and are not asked whether they live
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

// See Note [One lock for the directory]. -1 if it is not there or the deadline has passed.
StatusOr<UniqueFd> LockDirectory(const std::string& directory, int64_t deadline_ns) {
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0 && errno == ENOENT) return UniqueFd();
  if (fd.get() < 0) return StartupError("cannot lock the directory " + Quoted(directory) + ": " + ErrorText(errno));
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (NowNs() >= deadline_ns) return UniqueFd();
    Nap(kNsPerMs);
  }
  struct stat locked{}, named{};
  const bool there = fstat(fd.get(), &locked) == 0 && lstat(directory.c_str(), &named) == 0 &&
                     locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
  return there ? std::move(fd) : UniqueFd();
}

// *missing: another job has removed the empty directory just now.
Status MakeDirectory(const std::string& directory, bool* missing) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return StartupError("cannot create the directory " + Quoted(directory) + " for the start-up socket: " +
                        std::strerror(errno) + "; set " + kKnob + " to a directory that exists and is writable");
  }
  return CheckDirectory(directory, missing);
}

Status BindError(const std::string& path) {
  const std::string advice =
      OutOfFiles(errno) ? "" : std::string("; set ") + kKnob + " to a directory on a local file system";
  return StartupError("cannot bind the start-up socket " + Quoted(path) + ": " + ErrorText(errno) + advice);
}

bool NobodyListens(const std::string& path) {
  const UniqueFd probe = NewSocket();
  const sockaddr_un address = Address(path);
  return probe.get() >= 0 && connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
         errno == ECONNREFUSED;
}

// What is left of jobs that were killed in the middle of start-up. With the directory locked, where nobody can have
// bound a socket and not listen yet.
void RemoveOldSockets(const std::string& directory) {
  namespace fs = std::filesystem;
  const auto oldest = fs::file_time_type::clock::now() - kOldSocket;
  std::error_code end, gone;
  for (fs::directory_iterator entry(directory, end); !end && entry != fs::directory_iterator(); entry.increment(end)) {
    const std::string path = entry->path().string();
    if (entry->path().extension() != ".sock" || path.size() > kMaxPath) continue;
    const bool is_old = entry->last_write_time(gone) < oldest && !gone;
    if (is_old && NobodyListens(path)) unlink(path.c_str());
  }
}

enum class Bound { kYes, kBusy, kFailed };

// With the directory locked.
Bound BindSocket(int fd, const std::string& path) {
  const sockaddr_un address = Address(path);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (bind(fd, generic, sizeof(address)) == 0) return Bound::kYes;
  if (errno != EADDRINUSE) return Bound::kFailed;
  const UniqueFd probe = NewSocket();
  if (probe.get() < 0) return Bound::kFailed;
  if (connect(probe.get(), generic, sizeof(address)) == 0 || errno != ECONNREFUSED) return Bound::kBusy;
  // Nobody listens: its owner has ended without removing it.
  if (unlink(path.c_str()) != 0) return Bound::kFailed;
  return bind(fd, generic, sizeof(address)) == 0 ? Bound::kYes : Bound::kFailed;
}

}  // namespace

std::string OwnDirectory(const std::string& base) { return base + "/horocache-" + std::to_string(geteuid()); }

StatusOr<MeetingPlace> FindMeetingPlace(const BootstrapConfig& config) {
  MeetingPlace place;
  place.directory = config.directory;
  if (place.directory.empty()) {
    const std::map<std::string, std::string> environment = ReadEnvironment();
    const auto found = environment.find("TMPDIR");
    const std::string base = found == environment.end() || found->second.empty() ? "/tmp" : found->second;
    place.directory = OwnDirectory(base);
  }
  char name[32];
  std::snprintf(
      name, sizeof(name), "/%016llx.sock",
      static_cast<unsigned long long>(Hash(config.identity.job + '\n' + std::to_string(config.handshake.epoch))));
  place.socket = place.directory + name;
  if (place.socket.size() > kMaxPath) {
    return StartupError("the start-up socket's path " + Quoted(place.socket) + " has " +
                        std::to_string(place.socket.size()) + " bytes, a socket's may have " +
                        std::to_string(kMaxPath) + "; set " + kKnob + " (or TMPDIR) to a shorter directory");
  }
  return place;
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

StatusOr<UniqueFd> TryConnect(const MeetingPlace& place) {
  bool missing = false;
  HC_RETURN_IF_ERROR(CheckDirectory(place.directory, &missing));
  if (missing) return UniqueFd();
  UniqueFd fd = NewSocket();
  if (fd.get() < 0) return SocketError();
  const sockaddr_un address = Address(place.socket);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return UniqueFd();
  return StartupError("cannot connect to the start-up socket " + Quoted(place.socket) + ": " + std::strerror(errno));
}

PeerCredentials CredentialsOf(int socket) {
  ucred found{};
  socklen_t size = sizeof(found);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) return {};
  return {found.uid, found.pid};
}

void RemoveIfStale(const MeetingPlace& place) {
  const int64_t deadline_ns = NowNs() + kCleanupNs;
  const StatusOr<UniqueFd> lock = LockDirectory(place.directory, deadline_ns);
  if (!lock.ok() || lock->get() < 0) return;
  // A process that ends closes its descriptors in any order: its listener may outlive its links for a moment.
  const sockaddr_un address = Address(place.socket);
  while (true) {
    const UniqueFd probe = NewSocket();
    if (probe.get() < 0) return;
    if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      const int error = errno;
      if (error == ECONNREFUSED) unlink(place.socket.c_str());
      if (error == ECONNREFUSED || error == ENOENT) break;
    }
    if (NowNs() >= deadline_ns) return;  // it lives
    Nap(kNsPerMs);
  }
  rmdir(place.directory.c_str());  // stays if another job's socket is in it
}

StatusOr<std::unique_ptr<Listener>> Listener::Open(const MeetingPlace& place, int64_t deadline_ns) {
  StatusOr<UniqueFd> lock = UniqueFd();
  while (lock->get() < 0) {
    bool missing = false;
    HC_RETURN_IF_ERROR(MakeDirectory(place.directory, &missing));
    if (!missing) lock = LockDirectory(place.directory, deadline_ns);
    if (!lock.ok()) return lock.status();
    if (lock->get() < 0 && NowNs() >= deadline_ns) {
      return StartupError("the directory " + Quoted(place.directory) +
                          " for the start-up socket stayed locked by another "
                          "process; set " +
                          kKnob + " to another directory");
    }
  }
  RemoveOldSockets(place.directory);
  // What fails from here on leaves no empty directory behind.
  const auto failed = [&](Status status) {
    rmdir(place.directory.c_str());
    return status;
  };
  UniqueFd socket = NewSocket();
  if (socket.get() < 0) return failed(SocketError());
  switch (BindSocket(socket.get(), place.socket)) {
    case Bound::kBusy:
      return std::unique_ptr<Listener>();
    case Bound::kFailed:
      return failed(BindError(place.socket));
    case Bound::kYes:
      break;
  }
  std::unique_ptr<Listener> listener(new Listener(place, std::move(socket)));
  if (listen(listener->fd(), kBacklog) != 0) return SocketError();
  return listener;
}

Listener::~Listener() {
  const StatusOr<UniqueFd> lock = LockDirectory(place_.directory, NowNs() + kCleanupNs);
  // This process listens, so nobody has taken the socket's place: it can go even without the lock.
  unlink(place_.socket.c_str());
  socket_.Close();
  if (lock.ok() && lock->get() >= 0) rmdir(place_.directory.c_str());  // stays if another job's socket is in it
}

}  // namespace horocache::net
