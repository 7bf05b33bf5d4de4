#include "runtime/diagnostics/observer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace horocache::runtime {
namespace {

constexpr int64_t kBetweenRecordsNs = kNsPerS;
constexpr int kBacklog = 8;
constexpr timeval kSendTimeout{2, 0};  // a client that stops reading is dropped

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
    if (sent <= 0) return;  // the client has gone or does not read
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

}  // namespace

Observer::Observer(const std::string& socket_name, std::string record_path, Callbacks callbacks)
    : record_(std::move(record_path)), callbacks_(std::move(callbacks)) {
  if (!socket_name.empty()) Listen(socket_name);
  polled_.reserve(2);  // with the waker's entry; sleeping then needs no memory
  thread_ = NamedThread("hc-observer", [this] { Run(); });
}

void Observer::Stop() {
  stopped_.store(true);
  {
    MutexLock lock(mutex_);
    asked_.stop = true;
  }
  waker_.Wake();
  thread_.Join();
  listener_.Close();
}

void Observer::Listen(const std::string& base) {
  // The descriptor's number makes the name unique: a process may have several runtimes of one rank, with one waker
  // each.
  const std::string name = base + "." + std::to_string(waker_.number());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);  // a leading zero byte: not a file
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  const auto* bound = reinterpret_cast<const sockaddr*>(&address);
  if (socket.get() < 0 || bind(socket.get(), bound, size) != 0 || listen(socket.get(), kBacklog) != 0) {
    callbacks_.warn("`horocache dump` will not reach this rank: " + ErrorText());
    return;
  }
  listener_ = std::move(socket);
}

// ---- any thread

void Observer::AskStacks(uint32_t process_set) {
  {
    MutexLock lock(mutex_);
    if (std::ranges::find(asked_.sets, process_set) != asked_.sets.end()) return;
    asked_.sets.push_back(process_set);
  }
  waker_.Wake();
}

void Observer::NoteError(const Status& why) {
  if (record_.path().empty() || stopped_.load()) return;
  noted_.store(true);
  if (why.code() == StatusCode::kPeerLost || why.code() == StatusCode::kAborted) LogRecordPath();
  {
    MutexLock lock(mutex_);
    if (!asked_.error.empty()) return;
    asked_.error = why.ToString();
  }
  waker_.Wake();
}

// Called before the error is shown, so that the error remains the program's last output, which launchers repeat.
void Observer::LogRecordPath() {
  if (!noted_.load()) return;
  std::string text;
  {
    MutexLock lock(mutex_);
    if (std::exchange(logged_path_, true)) return;
    text = no_record_;
  }
  if (text.empty())
    text =
        "the events before this error are written to " + Printable(record_.path()) + " (horocache dump FILE shows it)";
  callbacks_.warn(text);
}

void Observer::CloseInChild() {
  waker_.CloseInChild();
  listener_.Close();
}

// ---- the observer's thread

Observer::Asked Observer::TakeAsked() {
  MutexLock lock(mutex_);
  return std::exchange(asked_, {});
}

int64_t Observer::SleepNs() const {
  if (unwritten_.empty()) return kNever;  // until a request
  return std::clamp<int64_t>(written_ns_ + kBetweenRecordsNs - NowNs(), 0, kBetweenRecordsNs);
}

void Observer::Run() {
  for (bool stop = false; !stop;) {
    polled_.assign(1, {listener_.intact() ? listener_.get() : -1, POLLIN, 0});
    waker_.Sleep(&polled_, SleepNs());
    Asked asked = TakeAsked();
    stop = asked.stop;
    try {
      if (unwritten_.empty()) unwritten_ = std::move(asked.error);
      const bool due = written_ns_ == 0 || NowNs() - written_ns_ >= kBetweenRecordsNs;
      if (!unwritten_.empty() && (stop || due)) WriteRecord();
      if (stop) return;
      SendNote(asked.sets);
      if (polled_[0].revents != 0 && listener_.intact()) Answer();
    } catch (const std::bad_alloc&) {  // the client may ask again
    }
  }
}

void Observer::SendNote(const std::vector<uint32_t>& sets) {
  if (sets.empty()) return;
  const std::string stacks = Stacks();
  for (const uint32_t process_set : sets) callbacks_.log_stacks(process_set, stacks);
}

void Observer::Answer() {
  const UniqueFd asking(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (asking.get() < 0 || !IsOwnUser(asking.get())) return;
  setsockopt(asking.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof(kSendTimeout));
  SendAll(asking.get(), callbacks_.record("a dump was requested", Stacks()));
}

void Observer::WriteRecord() {
  written_ns_ = NowNs();
  const Status written = record_.Replace(callbacks_.record(std::exchange(unwritten_, {}), Stacks()));
  if (written.ok()) return;
  const std::string text = "there is no flight record " + Printable(record_.path()) + ": " + written.message();
  {
    MutexLock lock(mutex_);
    if (!no_record_.empty()) return;
    no_record_ = text;
    if (!logged_path_) return;
  }
  callbacks_.warn(text);
}

}  // namespace horocache::runtime
