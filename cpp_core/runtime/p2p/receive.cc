// The receiving half of PointToPoint: recv operations and frames from peers.
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/p2p/engine.h"
#include "runtime/p2p/message_operation.h"

namespace horocache::runtime {

bool PointToPoint::Receive() {
  bool moved = false;
  for (size_t i = 0; i < config_.links.size(); ++i) {
    net::Link& link = *config_.links[i];
    moved |= link.Receive([this, i](int number, std::span<const std::byte> frame) {
      if (broken_.ok()) OnFrame(rank_of_[i].at(static_cast<size_t>(number)), frame);
    });
    if (broken_.ok() && !link.broken().ok()) broken_ = link.broken();
  }
  return moved;
}

void PointToPoint::SubmitReceive(Operation* operation) {
  const MessageKey key = KeyOf(*operation);
  const std::optional<Arrival> arrival = queues_.TakeArrival(key);
  if (!arrival) {
    if (!PeerOf(key.source).left) {
      queues_.Post(key, operation);
      return;
    }
    Finish(operation, {StatusCode::kShutDown,
                       "rank " + std::to_string(key.source) + " has shut down; " + DescribeMessage(*operation) +
                           " on rank " + std::to_string(config_.rank) + " waits for a message that cannot come."});
    return;
  }
  const FrameHead head{.dtype = static_cast<uint8_t>(arrival->dtype), .id = arrival->id, .count = arrival->count};
  switch (arrival->kind) {
    case Arrival::Kind::kWhole:
      Deliver(operation, head, arrival->payload);
      GiveBack(key.source, static_cast<int64_t>(arrival->payload.size()) + kKeepBytes);
      return;
    case Arrival::Kind::kAnnounced:
      Grant(operation, head);
      return;
    case Arrival::Kind::kLost:
      Finish(operation, {StatusCode::kShutDown,
                         "rank " + std::to_string(key.source) + " shut down before " + DescribeMessage(*operation) +
                             " on rank " + std::to_string(config_.rank) + " was posted; its message is lost."});
      return;
  }
}

void PointToPoint::OnFrame(int from, std::span<const std::byte> frame) {
  FrameHead head;
  if (from < 0 || frame.size() < sizeof(head)) {
    Break(from, "a frame of " + std::to_string(frame.size()) + " bytes");
    return;
  }
  std::memcpy(&head, frame.data(), sizeof(head));
  const std::span<const std::byte> payload = frame.subspan(sizeof(head));
  PeerOf(from).credit += head.credit;
  if (head.dtype >= kNumDTypes || head.count < 0 || head.count > kMaxMessageBytes / 16 || head.tag < 0 ||
      PeerOf(from).credit > kCreditBytes) {
    Break(from, std::to_string(head.count) + " elements of type " + std::to_string(head.dtype) + ", tag " +
                    std::to_string(head.tag) + ", " + std::to_string(head.credit) + " bytes of credit given back");
    return;
  }
  switch (head.kind) {
    case FrameKind::kEager:
      return OnEager(from, head, payload);
    case FrameKind::kAnnounce:
      return OnAnnounce(from, head);
    case FrameKind::kGrant:
      return OnGrant(from, head);
    case FrameKind::kData:
      return OnData(from, head, payload);
    case FrameKind::kRefuse:
      return OnRefuse(from, head);
    case FrameKind::kCredit:
      return;
    case FrameKind::kFarewell:
      return Close(from);
  }
  Break(from, "unknown kind of frame " + std::to_string(static_cast<int>(head.kind)));
}

void PointToPoint::OnEager(int from, const FrameHead& head, std::span<const std::byte> payload) {
  Peer& peer = PeerOf(from);
  const int64_t cost = static_cast<int64_t>(payload.size()) + kKeepBytes;
  peer.held_bytes += cost;
  const auto dtype = static_cast<DType>(head.dtype);
  if (payload.size() != static_cast<size_t>(head.count) * DTypeBytes(dtype) || peer.held_bytes > kCreditBytes) {
    Break(from, ElementsText(head.count, dtype) + " in " + std::to_string(payload.size()) + " bytes, with " +
                    std::to_string(peer.held_bytes) + " bytes of credit in use");
    return;
  }
  const MessageKey key{from, head.process_set, head.tag};
  if (Operation* receive = queues_.TakePosted(key); receive != nullptr) {
    Deliver(receive, head, payload);
    GiveBack(from, cost);
    return;
  }
  queues_.Keep(key, {Arrival::Kind::kWhole, dtype, head.count, head.id, {payload.begin(), payload.end()}});
}

void PointToPoint::Deliver(Operation* receive, const FrameHead& head, std::span<const std::byte> payload) {
  receive->message = head.id;
  Status status = CompareMessage(*receive, config_.rank, head);
  if (status.ok() && !payload.empty()) std::memcpy(receive->tensors[0].output, payload.data(), payload.size());
  Finish(receive, std::move(status));
}

void PointToPoint::GiveBack(int to, int64_t bytes) {
  Peer& peer = PeerOf(to);
  peer.owed_bytes += static_cast<uint32_t>(bytes);
  if (peer.owed_bytes < kCreditBytes / 4 || std::exchange(peer.credit_queued, true)) return;
  Queue(to, {.kind = FrameKind::kCredit});
}

void PointToPoint::OnAnnounce(int from, const FrameHead& head) {
  const MessageKey key{from, head.process_set, head.tag};
  if (Operation* receive = queues_.TakePosted(key); receive != nullptr) {
    Grant(receive, head);
  } else {
    queues_.Keep(key, {Arrival::Kind::kAnnounced, static_cast<DType>(head.dtype), head.count, head.id, {}});
  }
}

void PointToPoint::Grant(Operation* receive, const FrameHead& head) {
  const int from = PeerRank(*receive);
  receive->message = head.id;
  Queue(from, HeadOf(FrameKind::kGrant, *receive, head.id));
  if (Status status = CompareMessage(*receive, config_.rank, head); !status.ok()) {
    Finish(receive, std::move(status));
    return;
  }
  const bool fresh = PeerOf(from).receiving.emplace(head.id, Receiving{receive, now_ns_, BytesOf(*receive)}).second;
  if (fresh) return;
  Break(from, "message " + std::to_string(head.id) + " was announced twice");
  Finish(receive, broken_);
}

void PointToPoint::OnGrant(int from, const FrameHead& head) {
  Peer& peer = PeerOf(from);
  const auto found = peer.sending.find(head.id);
  if (found == peer.sending.end() && head.id < next_id_) {
    // This rank has given up the message. If it is leaving, its farewell says so.
    if (!leaving_) Queue(from, {.kind = FrameKind::kRefuse, .id = head.id});
    return;
  }
  if (found == peer.sending.end() || found->second.granted) {
    Break(from, "a grant for message " + std::to_string(head.id) + ", which does not wait for one");
    return;
  }
  Operation* send = found->second.operation;
  if (Status status = CompareMessage(*send, config_.rank, head); !status.ok()) {
    peer.sending.erase(found);
    Finish(send, std::move(status));
    return;
  }
  found->second.granted = true;
  found->second.moved_ns = now_ns_;
  peer.ready.push_back(head.id);
  Activate(from);
}

void PointToPoint::OnData(int from, const FrameHead& head, std::span<const std::byte> payload) {
  Peer& peer = PeerOf(from);
  const auto found = peer.receiving.find(head.id);
  if (found == peer.receiving.end() || payload.empty() != (found->second.bytes == 0) ||
      payload.size() > found->second.bytes - found->second.received_bytes) {
    Break(from, std::to_string(payload.size()) + " bytes of message " + std::to_string(head.id) +
                    " that this rank does not expect");
    return;
  }
  Receiving& receiving = found->second;
  Operation* receive = receiving.operation;
  if (receive != nullptr && !payload.empty()) {
    std::memcpy(receive->tensors[0].output + receiving.received_bytes, payload.data(), payload.size());
  }
  receiving.received_bytes += payload.size();
  receiving.moved_ns = now_ns_;
  if (receiving.received_bytes < receiving.bytes) return;
  peer.receiving.erase(found);
  if (receive != nullptr) Finish(receive, Status::Ok());
}

}  // namespace horocache::runtime
