// Start-up messages over one non-blocking Unix stream socket, with descriptors.
//
// The peer is the same user at most: everything it sends is bounded and checked. Used by one thread, which polls.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "net/bootstrap.h"

namespace horocache::net {

enum class MessageType : uint8_t {
  kHello = 1,    // worker: who I am; its pidfd if it has one
  kOffer,        // rank 0: the arena's descriptor and everybody's pid
  kDescriptors,  // rank 0: pidfds of some ranks
  kReady,        // worker: whether it could attach
  kGiveUp,       // worker: its time is over
  kVerdict,      // rank 0: start, or why not
};

struct Message {
  MessageType type{};
  std::string payload;
  std::vector<UniqueFd> fds;
};

class Connection {
 public:
  static constexpr size_t kMaxPayload = 1 << 20;
  static constexpr size_t kMaxFds = 128;  // of one message; the kernel takes 253

  enum class Io {
    kOk,
    kEnd,      // the peer closed the socket or ended
    kGarbage,  // the peer does not speak this protocol
    kNoFds,    // this process may not open the descriptors that were sent
  };

  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  UniqueFd TakeSocket() { return std::move(socket_); }

  // `fds` are borrowed until they are flushed.
  void Queue(MessageType type, std::string_view payload, const std::vector<int>& fds = {});
  bool flushed() const { return out_.empty(); }
  Io Flush();
  // Reads what is there until a message can be taken, and nothing of the next.
  Io Fill();
  bool Take(Message* message);
  // Both; *io stays as it is unless Fill fails.
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
