#include "net/bootstrap/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace horocache::net {
namespace {

// The magic number is the same in every version, so that two versions can report their mismatch to each other.
constexpr std::array<char, 4> kMessageMagic = {'H', 'C', 'B', '1'};
constexpr size_t kHeaderBytes = 12;  // magic, type, number of descriptors, 0, 0, length (little endian)

uint32_t Length(std::string_view header) {
  uint32_t length = 0;
  for (size_t i = 0; i < 4; ++i) length |= static_cast<uint32_t>(static_cast<uint8_t>(header[8 + i])) << (8 * i);
  return length;
}

}  // namespace

void Connection::Queue(MessageType type, std::string_view payload, const std::vector<int>& fds) {
  Outgoing message;
  message.fds = fds;
  message.bytes.assign(kMessageMagic.data(), kMessageMagic.size());
  message.bytes += static_cast<char>(type);
  message.bytes += static_cast<char>(fds.size());
  message.bytes.append(2, '\0');
  for (size_t i = 0; i < 4; ++i) message.bytes += static_cast<char>(payload.size() >> (8 * i));
  message.bytes += payload;
  out_.push_back(std::move(message));
}

Connection::Io Connection::Flush() {
  while (!out_.empty()) {
    Outgoing& message = out_.front();
    iovec bytes{message.bytes.data() + message.sent, message.bytes.size() - message.sent};
    msghdr header{};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
    if (message.sent == 0 && !message.fds.empty()) {
      const size_t size = message.fds.size() * sizeof(int);
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(size);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(size);
      std::memcpy(CMSG_DATA(rights), message.fds.data(), size);
    }
    const ssize_t sent = sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      message.sent += static_cast<size_t>(sent);
      if (message.sent == message.bytes.size()) out_.pop_front();
    } else if (errno == ETOOMANYREFS) {
      // The kernel limits the descriptors in flight per user: peers must receive some first.
      Nap(kNsPerMs);
      return Io::kOk;
    } else if (errno == EAGAIN) {
      return Io::kOk;
    } else if (errno != EINTR) {
      return Io::kEnd;
    }
  }
  return Io::kOk;
}

Connection::Io Connection::TakeFds(void* header_pointer) {
  auto& header = *static_cast<msghdr*>(header_pointer);
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      in_fds_.emplace_back(fd);
    }
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) return in_fds_.size() > kMaxFds ? Io::kGarbage : Io::kNoFds;
  return in_fds_.size() > 2 * kMaxFds ? Io::kGarbage : Io::kOk;
}

Connection::Io Connection::CheckHeader() const {
  const size_t known = std::min(in_.size(), kMessageMagic.size());
  if (std::memcmp(in_.data(), kMessageMagic.data(), known) != 0) return Io::kGarbage;
  if (in_.size() < kHeaderBytes) return Io::kOk;
  const auto type = static_cast<uint8_t>(in_[4]);
  const bool good = type >= static_cast<uint8_t>(MessageType::kHello) &&
                    type <= static_cast<uint8_t>(MessageType::kAnnouncement) &&
                    static_cast<uint8_t>(in_[5]) <= kMaxFds && Length(in_) <= kMaxPayload;
  return good ? Io::kOk : Io::kGarbage;
}

Connection::Io Connection::Fill() {
  std::array<char, 16384> buffer;
  // No byte of the next message is read, so the buffer stays small however much a peer sends, and the bytes after
  // start-up are left for the next owner of the socket.
  while (!HasMessage()) {
    const size_t message = kHeaderBytes + (in_.size() < kHeaderBytes ? 0 : Length(in_));
    iovec bytes{buffer.data(), std::min(message - in_.size(), buffer.size())};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(253 * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Io::kOk;
    if (got < 0) return Io::kEnd;
    if (const Io io = TakeFds(&header); io != Io::kOk) return io;
    if (got == 0) return Io::kEnd;
    in_.append(buffer.data(), static_cast<size_t>(got));
    if (const Io io = CheckHeader(); io != Io::kOk) return io;
  }
  return Io::kOk;
}

bool Connection::Receive(Message* message, Io* io) {
  if (const Io filled = Fill(); filled != Io::kOk) *io = filled;
  return Take(message);
}

bool Connection::HasMessage() const {
  return in_.size() >= kHeaderBytes && CheckHeader() == Io::kOk && in_.size() - kHeaderBytes >= Length(in_);
}

bool Connection::Take(Message* message) {
  if (!HasMessage()) return false;
  const size_t length = Length(in_);
  message->type = static_cast<MessageType>(in_[4]);
  message->payload = in_.substr(kHeaderBytes, length);
  message->fds.clear();
  for (auto count = static_cast<uint8_t>(in_[5]); count > 0 && !in_fds_.empty(); --count) {
    message->fds.push_back(std::move(in_fds_.front()));
    in_fds_.pop_front();
  }
  in_.erase(0, kHeaderBytes + length);
  return true;
}

}  // namespace horocache::net
