// Start-up messages, with descriptors, over one non-blocking Unix stream socket.
//
// The peer is known only to run as the same user, so everything it sends is bounded and checked. Used by one thread,
// which polls.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "net/bootstrap/bootstrap.h"

namespace horocache::net {

enum class MessageType : uint8_t {
  kHello = 1,     // worker: its identity and handshake; its pidfd if it has one
  kOffer,         // rank 0: the arena's descriptor and the pids of all ranks
  kDescriptors,   // rank 0: the pidfds of some ranks
  kReady,         // worker: Ok if it could attach, else the error
  kGiveUp,        // worker: its time limit has passed
  kOutcome,       // rank 0: the outcome, Ok to start or the error
  kAnnouncement,  // rank 0, before the offer: its text for all ranks, unless that is empty
};

struct Message {
  MessageType type{};
  std::string payload;
  std::vector<UniqueFd> fds;
};

class Connection {
 public:
  static constexpr size_t kMaxPayload = 1 << 20;
  static constexpr size_t kMaxFds = 128;  // per message; the kernel allows 253

  enum class Io {
    kOk,
    kEnd,      // the peer closed the socket or ended
    kGarbage,  // the peer does not speak this protocol
    kNoFds,    // this process may not open as many files as the peer sent
  };

  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  UniqueFd TakeSocket() { return std::move(socket_); }

  // Queues a message. `fds` are borrowed until it is flushed.
  void Queue(MessageType type, std::string_view payload, const std::vector<int>& fds = {});
  bool flushed() const { return out_.empty(); }
  Io Flush();
  // Reads until one message is complete or no bytes are left; takes no byte of the next message.
  Io Fill();
  bool Take(Message* message);
  // Fill and Take. Changes *io only if Fill fails.
  bool Receive(Message* message, Io* io);

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<int> fds;
    size_t sent = 0;
  };
  Io TakeFds(void* header);
  Io CheckHeader() const;
  bool HasMessage() const;

  UniqueFd socket_;
  std::deque<Outgoing> out_;
  std::string in_;
  std::deque<UniqueFd> in_fds_;
};

}  // namespace horocache::net
