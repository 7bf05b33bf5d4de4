#include "runtime/observer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/clock.h"

namespace horocache::runtime {
namespace {

constexpr int64_t kBetweenRecordsNs = kNsPerS;
constexpr int kBacklog = 8;
constexpr timeval kSendTimeout{2, 0};  // who asks and does not read gets no more

std::string ErrorText() { return std::generic_category().message(errno); }

bool IsOwnUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

void SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;  // who asked has gone, or does not read
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

Status WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return InvalidArgumentError(ErrorText());
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

// Under another name first, so that nobody reads half of it. Makes the folder if need be.
Status ReplaceFile(const std::string& path, std::string_view bytes) {
  std::error_code ignored;  // opening tells
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string fresh = path + ".new";
  const UniqueFd file(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return InvalidArgumentError(ErrorText());
  Status status = WriteAll(file.get(), bytes);
  if (status.ok() && rename(fresh.c_str(), path.c_str()) != 0) status = InvalidArgumentError(ErrorText());
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

}  // namespace

Observer::Observer(const std::string& socket_name, std::string record_path, Means means)
    : record_path_(std::move(record_path)), means_(std::move(means)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0) {
    means_.warn("errors will leave no flight record: " + ErrorText());
    return;
  }
  if (!socket_name.empty()) Listen(socket_name);
  thread_ = NamedThread("hc-observer", [this] { Run(); });
}

void Observer::Stop() {
  {
    MutexLock lock(mutex_);
    asked_.stop = true;
  }
  Wake();
  thread_.Join();
  listener_.Close();
}

void Observer::Listen(const std::string& base) {
  // A process may have several runtimes of one rank, each with an open descriptor of its own.
  const std::string name = base + "." + std::to_string(wake_.get());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);  // a zero before it: not a file
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  const auto* bound = reinterpret_cast<const sockaddr*>(&address);
  if (socket.get() < 0 || bind(socket.get(), bound, size) != 0 || listen(socket.get(), kBacklog) != 0) {
    means_.warn("`horocache dump` will not reach this rank: " + ErrorText());
    return;
  }
  listener_ = std::move(socket);
}

// ---- any thread

void Observer::Wake() {
  const uint64_t one = 1;
  while (wake_.get() >= 0 && write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void Observer::AskStacks(uint32_t process_set) {
  {
    MutexLock lock(mutex_);
    if (std::ranges::find(asked_.sets, process_set) != asked_.sets.end()) return;
    asked_.sets.push_back(process_set);
  }
  Wake();
}

void Observer::NoteError(const Status& why) {
  if (record_path_.empty()) return;
  // Before the error itself, which is the last thing that a program prints, and what a launcher shows.
  if (!told_path_.exchange(true)) {
    means_.warn("what led to this error goes to " + record_path_ + " (horocache dump FILE shows it)");
  }
  {
    MutexLock lock(mutex_);
    if (!asked_.error.empty()) return;
    asked_.error = why.ToString();
  }
  Wake();
}

void Observer::CloseInChild() {
  wake_.Close();
  listener_.Close();
}

// ---- the thread

Observer::Asked Observer::TakeAsked() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = read(wake_.get(), &count, sizeof(count));
  MutexLock lock(mutex_);
  return std::exchange(asked_, {});
}

int Observer::TimeoutMs() const {
  if (unwritten_.empty()) return -1;  // until a descriptor speaks
  const int64_t left_ns = written_ns_ + kBetweenRecordsNs - NowNs();
  return static_cast<int>(std::clamp<int64_t>(left_ns / kNsPerMs + 1, 0, kBetweenRecordsNs / kNsPerMs));
}

void Observer::Run() {
  std::array<pollfd, 2> polled{pollfd{wake_.get(), POLLIN, 0}, pollfd{listener_.get(), POLLIN, 0}};
  for (bool stop = false; !stop;) {
    if (poll(polled.data(), polled.size(), TimeoutMs()) < 0 && errno != EINTR) poll(nullptr, 0, 100);
    Asked asked = TakeAsked();
    stop = asked.stop;
    if (unwritten_.empty()) unwritten_ = std::move(asked.error);
    if (!unwritten_.empty() && (stop || written_ns_ == 0 || NowNs() - written_ns_ >= kBetweenRecordsNs)) WriteRecord();
    if (stop) return;
    if (!asked.sets.empty()) {
      const std::string stacks = Stacks();
      for (const uint32_t process_set : asked.sets) means_.tell(process_set, stacks);
    }
    if (polled[1].revents != 0) Answer();
  }
}

void Observer::Answer() {
  const UniqueFd asking(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (asking.get() < 0 || !IsOwnUser(asking.get())) return;
  setsockopt(asking.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof(kSendTimeout));
  SendAll(asking.get(), means_.record("somebody asked", Stacks()));
}

void Observer::WriteRecord() {
  written_ns_ = NowNs();
  const Status written = ReplaceFile(record_path_, means_.record(std::exchange(unwritten_, {}), Stacks()));
  if (written.ok() || std::exchange(failed_, true)) return;
  means_.warn("the flight record " + record_path_ + " cannot be written: " + written.message());
}

}  // namespace horocache::runtime
