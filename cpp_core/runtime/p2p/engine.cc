#include "runtime/p2p/engine.h"

#include <algorithm>
#include <utility>

#include "runtime/diagnostics/timeline_record.h"
#include "runtime/p2p/message_operation.h"

namespace horocache::runtime {
namespace {

// Limits the sending part of a step to about 100 us, however much is queued.
constexpr int kFramesPerStep = 8;

}  // namespace

PointToPoint::PointToPoint(PointToPointConfig config, OperationTable* table, Metrics* metrics)
    : config_(std::move(config)), table_(table), metrics_(metrics), peers_(config_.routes.size()) {
  for (const auto& link : config_.links) {
    rank_of_.emplace_back(static_cast<size_t>(link->size()), -1);
    must_poll_ |= link->must_poll();
  }
  for (size_t rank = 0; rank < config_.routes.size(); ++rank) {
    const Route& route = config_.routes[rank];
    if (route.number < 0) {
      peers_[rank].left = true;  // unreachable: nothing is sent there, and nothing comes from there
      continue;
    }
    rank_of_[route.link][static_cast<size_t>(route.number)] = static_cast<int>(rank);
  }
}

void PointToPoint::Finish(Operation* operation, Status status) {
  --pending_;
  const auto op = static_cast<size_t>(operation->request.signature.op);
  metrics_->op_count[op].Add(1);
  metrics_->op_ns[op].Add(static_cast<uint64_t>(std::max<int64_t>(0, now_ns_ - operation->submitted_ns)));
  if (status.ok()) {
    const bool sent = IsSend(*operation);
    (sent ? metrics_->messages_sent : metrics_->messages_received).Add(1);
    (sent ? metrics_->message_bytes_sent : metrics_->message_bytes_received).Add(BytesOf(*operation));
  }
  if (config_.timeline != nullptr && config_.timeline->on()) {
    observe::OperationTrace trace = TraceOf(*operation, status, now_ns_);
    trace.peer = PeerRank(*operation);
    trace.tag = operation->tag;
    trace.sequence = operation->message;
    config_.timeline->Add(trace);
  }
  table_->Finish(operation, std::move(status));
}

void PointToPoint::Break(int from, const std::string& what) {
  if (!broken_.ok()) return;
  broken_ = {StatusCode::kCorrupt, "rank " + std::to_string(config_.rank) + " cannot read a message from rank " +
                                       std::to_string(from) + ": " + what};
}

bool PointToPoint::must_poll() const {
  if (!must_poll_) return false;
  const auto sending = [](const auto& link) { return link->sending(); };
  return pending_ > 0 || leaving_ || !active_.empty() || std::ranges::any_of(config_.links, sending);
}

void PointToPoint::Submit(Operation* operation, int64_t now_ns) {
  now_ns_ = now_ns;
  ++pending_;
  if (!failed_.ok()) {
    Finish(operation,
           {failed_.code(), DescribeMessage(*operation) + " was submitted after the end: " + failed_.message()});
    return;
  }
  if (leaving_) {
    Finish(operation, {StatusCode::kShutDown, DescribeMessage(*operation) + " was submitted after shutdown() on rank " +
                                                  std::to_string(config_.rank) + "."});
    return;
  }
  if (config_.stall_check) next_check_ns_ = std::min(next_check_ns_, now_ns + config_.stall_warn_ns);
  IsSend(*operation) ? SubmitSend(operation) : SubmitReceive(operation);
}

bool PointToPoint::Step(int64_t now_ns) {
  now_ns_ = now_ns;
  if (!failed_.ok()) return false;
  const bool received = Receive();  // first, because an arrival may be answered at once
  if (broken_.ok()) return SendOut() || received;
  EndWith(broken_, now_ns);
  return true;
}

// ---- sending

void PointToPoint::SubmitSend(Operation* operation) {
  const int to = PeerRank(*operation);
  Peer& peer = PeerOf(to);
  if (peer.left) {
    Finish(operation,
           {StatusCode::kShutDown, "rank " + std::to_string(to) + " has shut down; " + DescribeMessage(*operation) +
                                       " on rank " + std::to_string(config_.rank) + " cannot be received any more."});
    return;
  }
  const uint64_t id = operation->message = next_id_++;
  const size_t bytes = BytesOf(*operation);
  const size_t most = std::min<size_t>(kEagerBytes, LinkTo(to).max_frame_bytes() - sizeof(FrameHead));
  const int64_t cost = static_cast<int64_t>(bytes) + kKeepBytes;
  if (bytes <= most && cost <= peer.credit) {
    peer.credit -= cost;
    Queue(to, HeadOf(FrameKind::kEager, *operation, id), operation);
    return;
  }
  peer.sending.emplace(id, Sending{operation, now_ns_});
  Queue(to, HeadOf(FrameKind::kAnnounce, *operation, id));
}

void PointToPoint::Queue(int to, const FrameHead& head, Operation* eager) {
  Peer& peer = PeerOf(to);
  if (peer.left || peer.sent_farewell) return;  // the peer reads nothing more, or has got this rank's farewell
  peer.queue.push_back({head, eager});
  Activate(to);
}

void PointToPoint::Activate(int rank) {
  Peer& peer = PeerOf(rank);
  if (!std::exchange(peer.active, true)) active_.push_back(rank);
}

bool PointToPoint::HasOutgoing(int rank) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  const bool farewell = leaving_ && !peer.sent_farewell && !peer.left && rank != config_.rank;
  return !peer.queue.empty() || !peer.ready.empty() || farewell;
}

// Ranks take turns frame by frame, so that a large message to one rank does not delay the others.
bool PointToPoint::SendOut() {
  int sent = 0;
  // Also ends when no active rank had room.
  for (size_t refused = 0; sent < kFramesPerStep && refused < active_.size();) {
    const int rank = active_.front();
    active_.pop_front();
    const bool moved = SendTo(rank);
    sent += moved ? 1 : 0;
    PeerOf(rank).active = HasOutgoing(rank);
    if (PeerOf(rank).active) active_.push_back(rank);
    refused = moved || !PeerOf(rank).active ? 0 : refused + 1;
  }
  return sent > 0;
}

bool PointToPoint::SendTo(int rank) {
  Peer& peer = PeerOf(rank);
  if (!peer.queue.empty()) {
    const Outgoing& next = peer.queue.front();
    std::span<const std::byte> payload;
    if (next.eager != nullptr) payload = {next.eager->tensors[0].input, BytesOf(*next.eager)};
    if (!TrySend(rank, next.head, payload)) return false;
    if (next.head.kind == FrameKind::kCredit) peer.credit_queued = false;
    Operation* sent = next.eager;
    peer.queue.pop_front();
    if (sent != nullptr) Finish(sent, Status::Ok());
    return true;
  }
  if (!peer.ready.empty()) return SendPiece(rank);
  if (!HasOutgoing(rank) || !TrySend(rank, {.kind = FrameKind::kFarewell}, {})) return false;
  peer.sent_farewell = true;
  return true;
}

bool PointToPoint::SendPiece(int rank) {
  Peer& peer = PeerOf(rank);
  const uint64_t id = peer.ready.front();
  const auto found = peer.sending.find(id);
  Sending& sending = found->second;
  const size_t bytes = BytesOf(*sending.operation);
  const size_t piece = std::min(bytes - sending.sent_bytes, LinkTo(rank).max_frame_bytes() - sizeof(FrameHead));
  const std::byte* at = sending.operation->tensors[0].input + sending.sent_bytes;
  if (!TrySend(rank, {.kind = FrameKind::kData, .id = id}, {at, piece})) return false;
  sending.sent_bytes += piece;
  sending.moved_ns = now_ns_;
  peer.ready.pop_front();
  if (sending.sent_bytes < bytes) {
    peer.ready.push_back(id);
    return true;
  }
  Operation* sent = sending.operation;
  peer.sending.erase(found);
  Finish(sent, Status::Ok());
  return true;
}

bool PointToPoint::TrySend(int to, FrameHead head, std::span<const std::byte> body) {
  Peer& peer = PeerOf(to);
  head.credit = peer.owed_bytes;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(&head), sizeof(head));
  const Route& route = config_.routes[static_cast<size_t>(to)];
  if (!config_.links[route.link]->TrySend(route.number, bytes, body)) return false;
  peer.held_bytes -= peer.owed_bytes;
  peer.owed_bytes = 0;
  return true;
}

}  // namespace horocache::runtime
