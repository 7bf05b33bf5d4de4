// Messages from one rank to another: matches sends with receives and moves their bytes over links, without rounds.
//
// Note [Eager and announced messages]
// A message of up to kEagerBytes travels at once and is kept by its receiver until a recv asks for it; its send is
// complete when the link has it. What may be kept is bounded: a sender has a credit of kCreditBytes with each receiver,
// which comes back on whatever frame goes the other way. A larger message, and one beyond the credit, is announced. Its
// receiver answers with a grant when a matching recv is posted, and then the payload goes in pieces from tensor to
// tensor; the send is complete when the link has the last piece. Frames of a pair keep their order, and so heads of
// messages do: first in, first out for each source, destination, process set and tag.
//
// A grant says what the receiver expects, so if that is something else both sides know, and each fails its own side.
// An eager message was complete at its sender, so there the receiver alone fails.
//
// Nothing here blocks, and no clock is read: Step moves what can be moved, `now_ns` comes in. What peers send is
// checked before it is used; what no peer may send breaks the engine.
//
// Role: the holder of the runtime's role. Owns the links; the operations belong to the table.
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
#include "net/link.h"
#include "observe/timeline.h"
#include "runtime/message_frame.h"
#include "runtime/message_queues.h"
#include "runtime/metrics.h"
#include "runtime/operation.h"
#include "runtime/operation_table.h"

namespace horocache::runtime {

// How a rank is reached: which link, and its number within that link's group; below 0: not at all.
struct Route {
  size_t link = 0;
  int number = -1;
};

struct PointToPointConfig {
  int rank = 0;
  std::vector<std::unique_ptr<net::Link>> links;
  std::vector<Route> routes;  // by rank of the job, this one included
  bool stall_check = true;
  int64_t stall_warn_ns = 0;
  int64_t stall_fail_ns = 0;  // 0: never
  // Unless `stall_fail_computing`, the limit counts from when the peer last computed, as far as `computed_ns` knows.
  bool stall_fail_computing = true;
  std::function<int64_t(int rank)> computed_ns;
  // Whether a rank has left, for one that could not say farewell because this rank took no frames; may be null.
  std::function<bool(int rank)> has_left;
  observe::Timeline* timeline = nullptr;  // null: none
};

class PointToPoint {
 public:
  static constexpr int64_t kEagerBytes = 16 << 10;
  static constexpr int64_t kCreditBytes = 4 << 20;
  // What keeping a message costs besides its payload: empty messages are bounded, too.
  static constexpr int64_t kKeepBytes = 128;

  PointToPoint(PointToPointConfig config, OperationTable* table, Metrics* metrics);

  // Takes an operation that CheckMessage accepts, with a rank that can be reached; finishes it, now or later.
  void Submit(Operation* operation, int64_t now_ns);
  // Moves what can be moved, by a bounded amount; true if anything moved.
  bool Step(int64_t now_ns);
  // Reports what has waited for too long, ends what has waited longer than that, and what waits for a rank that left.
  void Check(int64_t now_ns);
  // The next warning for people; false if there is none.
  bool NextReport(std::string* text);

  // This rank leaves: what has no partner yet fails, what is under way goes on, then everybody is told.
  void Leave(int64_t now_ns);
  // Everybody has been told, or nobody can be any more.
  bool HasLeft() const;
  // The job cannot go on, or this rank has stopped: what has arrived is still delivered, everything else that is
  // pending fails with `why`, and so does all that is submitted later. The first reason counts.
  void Lose(const Status& why, int64_t now_ns);

  // The process set is gone: what has no partner yet in it fails with kShutDown, and what came for nobody is dropped.
  void EndSet(uint32_t process_set, const std::string& why, int64_t now_ns);

  // Nothing more is sent or received. Who cannot be trusted to take it is not told.
  void SayGoodbye();

  // Bytes are under way from or to this rank.
  bool Transferring() const;
  // Step has to be called now and then: somebody waits for what may arrive without waking anybody, or what was sent
  // moves only then. While nobody here waits, what others send stays where it is, and their credit bounds it.
  bool must_poll() const;

 private:
  struct Outgoing {
    FrameHead head;
    Operation* eager = nullptr;  // whose payload goes with it
  };
  struct Sending {  // an announced message
    Operation* operation;
    int64_t moved_ns;
    size_t sent_bytes = 0;
    bool granted = false;
  };
  struct Receiving {       // a granted message
    Operation* operation;  // null: nobody wants it any more
    int64_t moved_ns;
    size_t bytes;
    size_t received_bytes = 0;
  };
  struct Peer {
    std::deque<Outgoing> queue;           // first in, first out
    std::map<uint64_t, Sending> sending;  // by id
    std::deque<uint64_t> ready;           // those granted, taking turns
    int64_t credit = kCreditBytes;        // for eager messages to it
    std::map<uint64_t, Receiving> receiving;
    int64_t held_bytes = 0;      // of its credit with this rank, that it has used and not got back
    uint32_t owed_bytes = 0;     // of these, what can go back
    bool credit_queued = false;  // a frame for that alone
    bool active = false;         // in active_
    bool left = false;
    bool told = false;  // that this rank has left
  };
  // Where a pending operation stands.
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

  // ---- ends (point_to_point_ends.cc)
  void Close(int peer);
  void LookForLeft();
  bool ReceiveAll();
  void FindPending(std::vector<Pending>* out) const;
  void Abandon(const Pending& pending);
  // When the pending operation is to fail, if there is a limit.
  int64_t FailNs(const Pending& pending) const;
  std::string StallText(const Pending& pending, int64_t now_ns) const;

  PointToPointConfig config_;
  OperationTable* const table_;
  Metrics* const metrics_;
  std::vector<std::vector<int>> rank_of_;  // by link and number within it
  bool must_poll_ = false;

  std::vector<Peer> peers_;  // by rank
  MessageQueues queues_;
  std::deque<int> active_;  // ranks that something is to be sent to, taking turns
  uint64_t next_id_ = 1;
  int64_t pending_ = 0;  // operations submitted and not finished
  int64_t now_ns_ = 0;
  bool leaving_ = false;
  Status failed_;  // why nothing can be submitted any more
  Status broken_;  // why a link or a peer's frame cannot be trusted; Step then loses everything

  int64_t next_check_ns_ = kNever;  // nothing is overdue before
  int64_t next_warning_ns_ = 0;
  std::deque<std::string> reports_;
};

}  // namespace horocache::runtime
