// Point-to-point messages: matches sends with receives and moves their bytes over links, without rounds.
//
// Note [Eager and announced messages]
// An eager message has at most kEagerBytes. It travels at once, and its send is complete when the link has taken it.
// The receiver stores it until a matching recv is posted. The stored bytes are bounded: a sender has a credit of
// kCreditBytes with each receiver, which the receiver returns in the head of any frame to the sender.
//
// A message that is larger, or exceeds the credit, is announced. Its receiver answers with a grant when a matching recv
// is posted. Then the payload travels in pieces, from tensor to tensor, and the send is complete when the link has
// taken the last piece. For example, a send of 1 MiB is one kAnnounce frame, one kGrant frame back, and then kData
// frames of the link's maximum size.
//
// The frames of a pair of ranks keep their order, and so do the heads of its messages: first in, first out for each
// source, destination, process set and tag.
//
// A grant states the element type and count that the receiver expects. On a mismatch both sides know, and each fails
// its own operation. An eager send is already complete at its sender, so on a mismatch only the receive fails.
//
// Nothing here blocks or reads a clock: Step moves the bytes that can be moved, and `now_ns` is an argument. Everything
// that peers send is checked before use; an invalid frame breaks the engine.
//
// Threads: the driving thread. Owns the links; the operation table owns the operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/duration.h"
#include "base/status.h"
#include "net/message_link.h"
#include "observe/timeline.h"
#include "runtime/diagnostics/metrics.h"
#include "runtime/p2p/matching.h"
#include "runtime/p2p/wire_format.h"
#include "runtime/submission/operation.h"
#include "runtime/submission/operation_table.h"

namespace horocache::runtime {

// The way to a rank: the link, and the rank's number in that link's group. A negative number means unreachable.
struct Route {
  size_t link = 0;
  int number = -1;
};

struct PointToPointConfig {
  int rank = 0;
  std::vector<std::unique_ptr<net::Link>> links;
  std::vector<Route> routes;  // by rank of the job, this rank included
  bool stall_check = true;
  int64_t stall_warn_ns = 0;
  int64_t stall_fail_ns = 0;  // 0: no limit
  // If false, the limit for an unmatched message counts from when the peer last computed, as returned by `computed_ns`.
  bool stall_fail_computing = true;
  std::function<int64_t(int rank)> computed_ns;
  // True if a rank has left. Detects a rank whose farewell frame found no room because this rank took no frames. May be
  // null.
  std::function<bool(int rank)> has_left;
  observe::Timeline* timeline = nullptr;  // null: none
};

class PointToPoint {
 public:
  static constexpr int64_t kEagerBytes = 16 << 10;
  static constexpr int64_t kCreditBytes = 4 << 20;
  // Credit that a message costs besides its payload, so that stored empty messages are bounded, too.
  static constexpr int64_t kKeepBytes = 128;

  PointToPoint(PointToPointConfig config, OperationTable* table, Metrics* metrics);

  // Takes an operation that CheckMessage has accepted and whose peer is reachable. Finishes it now or later.
  void Submit(Operation* operation, int64_t now_ns);
  // Moves a bounded number of bytes; true if anything moved.
  bool Step(int64_t now_ns);
  // Queues warnings about messages that wait for too long, fails messages past the limit, and closes peers that have
  // left.
  void Check(int64_t now_ns);
  // Takes the next warning for the log; false if there is none.
  bool NextReport(std::string* text);

  // Starts to leave: queued eager sends and granted sends go on, every other pending message fails, and then every peer
  // gets a farewell.
  void Leave(int64_t now_ns);
  // True if the engine has ended, or if this rank leaves and every peer has got its farewell or has left.
  bool HasLeft() const;
  // Ends the engine because the job cannot continue or this rank has stopped. Messages that have arrived are still
  // delivered. Every other pending operation and every later one fails with `why`. Only the first call counts.
  void EndWith(const Status& why, int64_t now_ns);

  // Ends a removed process set: its unmatched messages fail with kShutDown, and its unclaimed arrivals are dropped.
  void EndSet(uint32_t process_set, const std::string& why, int64_t now_ns);

  // Says goodbye on all links; nothing is sent or received afterwards. Skipped if the job was lost, because then the
  // peers may not say goodbye.
  void SayGoodbye();

  // True if bytes are on their way from or to this rank.
  bool Transferring() const;
  // True if Step must be called regularly: this rank waits for frames that ring no doorbell, or has sent frames that
  // move only during calls. While this rank waits for nothing, frames from peers stay in the link, bounded by the
  // peers' credit.
  bool must_poll() const;

 private:
  struct Outgoing {
    FrameHead head;
    Operation* eager = nullptr;  // the operation whose payload the frame carries; null: none
  };
  struct Sending {  // an announced message on its sender
    Operation* operation;
    int64_t moved_ns;
    size_t sent_bytes = 0;
    bool granted = false;
  };
  struct Receiving {       // a granted message on its receiver
    Operation* operation;  // null: the receive was given up, drop the payload
    int64_t moved_ns;
    size_t bytes;
    size_t received_bytes = 0;
  };
  struct Peer {
    std::deque<Outgoing> queue;           // frames to send, first in, first out
    std::map<uint64_t, Sending> sending;  // by id
    std::deque<uint64_t> ready;           // granted ids that have payload left, taking turns
    int64_t credit = kCreditBytes;        // this rank's eager credit with the peer
    std::map<uint64_t, Receiving> receiving;
    int64_t held_bytes = 0;      // the peer's eager credit that is in use on this rank
    uint32_t owed_bytes = 0;     // the part of held_bytes that the next frame returns
    bool credit_queued = false;  // true if a kCredit frame is queued
    bool active = false;         // true if the peer is in active_
    bool left = false;
    bool sent_farewell = false;
  };
  // The stage of a pending operation.
  enum class Stage { kQueued, kAnnounced, kSending, kPosted, kReceiving };
  struct Pending {
    Operation* operation;
    Stage stage;
    int64_t since_ns;
    uint64_t id = 0;
  };

  net::Link& LinkTo(int rank) { return *config_.links[config_.routes[static_cast<size_t>(rank)].link]; }
  Peer& PeerOf(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void Finish(Operation* operation, Status status);
  void Break(int from, const std::string& what);

  // ---- sending
  void SubmitSend(Operation* operation);
  void Queue(int to, const FrameHead& head, Operation* eager = nullptr);
  void Activate(int rank);
  bool HasOutgoing(int rank) const;
  bool SendOut();
  bool SendTo(int rank);
  bool SendPiece(int rank);
  bool TrySend(int to, FrameHead head, std::span<const std::byte> body);

  // ---- receiving
  void SubmitReceive(Operation* operation);
  bool Receive();
  void OnFrame(int from, std::span<const std::byte> frame);
  void OnEager(int from, const FrameHead& head, std::span<const std::byte> payload);
  void OnAnnounce(int from, const FrameHead& head);
  void OnGrant(int from, const FrameHead& head);
  void OnData(int from, const FrameHead& head, std::span<const std::byte> payload);
  void OnRefuse(int from, const FrameHead& head);
  void Deliver(Operation* receive, const FrameHead& head, std::span<const std::byte> payload);
  void Grant(Operation* receive, const FrameHead& head);
  void GiveBack(int to, int64_t bytes);

  // ---- ends (endings.cc)
  void Close(int peer);
  void LookForLeft();
  bool ReceiveAll();
  void FindPending(std::vector<Pending>* out) const;
  void Abandon(const Pending& pending);
  void LeaveOutPatient(std::vector<Pending>* pending);
  // The time at which the pending operation fails; requires stall_fail_ns > 0.
  int64_t FailNs(const Pending& pending) const;
  std::string StallText(const Pending& pending, int64_t now_ns) const;

  PointToPointConfig config_;
  OperationTable* const table_;
  Metrics* const metrics_;
  std::vector<std::vector<int>> rank_of_;  // rank of the job, by link and number within it
  bool must_poll_ = false;

  std::vector<Peer> peers_;  // by rank
  MessageQueues queues_;
  std::deque<int> active_;  // ranks with frames or payload to send, taking turns
  uint64_t next_id_ = 1;
  int64_t pending_ = 0;  // submitted, unfinished operations
  int64_t now_ns_ = 0;
  bool leaving_ = false;
  Status failed_;  // why the engine has ended; ok while it runs
  Status broken_;  // why a link or a peer's frame is invalid; the next Step then ends the engine

  int64_t next_check_ns_ = kNever;  // time of the next stall check
  int64_t next_warning_ns_ = 0;
  std::deque<std::string> reports_;
};

}  // namespace horocache::runtime
