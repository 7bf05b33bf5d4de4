#include "net/bootstrap/bootstrap.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "net/bootstrap/common.h"
#include "net/bootstrap/connection.h"
#include "net/bootstrap/duplicate_rank_watch.h"
#include "net/bootstrap/handshake.h"
#include "net/bootstrap/open_files.h"
#include "net/bootstrap/server.h"
#include "net/bootstrap/unix_rendezvous.h"

namespace horocache::net {
namespace {

// Pauses between two attempts to connect: the first one, and the limit up to which it doubles.
constexpr int64_t kFirstNapNs = kNsPerMs / 2;
constexpr int64_t kLongestNapNs = 10 * kNsPerMs;

// The side of every rank but 0. A second process that claims to be rank 0 runs it, too, and gets the error from rank 0.
class Worker {
 public:
  Worker(const BootstrapConfig& config, SocketPlace place, int64_t deadline_ns)
      : config_(config), place_(std::move(place)), deadline_ns_(deadline_ns) {}

  StatusOr<Peers> Run();

 private:
  StatusOr<UniqueFd> Connect() const;
  StatusOr<Peers> Converse(Connection& connection);
  // True once the outcome, Ok or an error, has arrived in outcome_.
  StatusOr<bool> Handle(Connection& connection, Message message);
  Status TakeOffer(Message message);
  Status TakeDescriptors(Message message);
  Status Ended(Connection::Io io) const;
  std::string Root() const { return words_.Rank(0); }

  const BootstrapConfig& config_;
  const StartupPhrases words_{config_};
  const SocketPlace place_;
  const int64_t deadline_ns_;
  int root_pid_ = 0;
  UniqueFd pidfd_;
  Peers peers_;
  size_t awaited_ = 0;  // pidfds that have not arrived yet
  bool offered_ = false;
  bool answered_ = false;  // kReady was sent
  Status outcome_;
};

StatusOr<UniqueFd> Worker::Connect() const {
  int64_t nap_ns = kFirstNapNs;
  while (true) {
    StatusOr<UniqueFd> socket = TryConnect(place_);
    if (!socket.ok() || socket->get() >= 0) return socket;
    if (NowNs() >= deadline_ns_) {
      return StartupError(Root() + " did not " + words_.Come() + " within " + SecondsText(config_.timeout_ns) +
                          ": no process listens on '" + place_.socket + "'. Is " + words_.Name(0) +
                          " running, on this host, with the same HOROCACHE_RENDEZVOUS_DIR and TMPDIR, and not waiting "
                          "for this rank " +
                          words_.Before() + "?");
    }
    if (Status stopped = Check(config_); !stopped.ok()) {
      RemoveIfStale(place_);  // the socket of a rank 0 that listened and died
      return stopped;
    }
    Nap(nap_ns);
    nap_ns = std::min(2 * nap_ns, kLongestNapNs);
  }
}

StatusOr<Peers> Worker::Run() {
  StatusOr<UniqueFd> socket = Connect();
  if (!socket.ok()) return socket.status();
  const PeerCredentials root = CredentialsOf(socket->get());
  if (root.uid != geteuid()) {
    return StartupError("the process that listens on '" + place_.socket + "' belongs to user " +
                        std::to_string(root.uid) + ", not to this user (" + std::to_string(geteuid()) + ")");
  }
  root_pid_ = root.pid;
  Connection connection(std::move(*socket));
  pidfd_ = OpenPidfd(getpid());
  connection.Queue(MessageType::kHello, EncodeHello(OwnHello(config_)),
                   pidfd_.get() >= 0 ? std::vector<int>{pidfd_.get()} : std::vector<int>{});
  return Converse(connection);
}

StatusOr<Peers> Worker::Converse(Connection& connection) {
  int64_t until_ns = deadline_ns_;
  bool gave_up = false;
  while (true) {
    Connection::Io io = connection.Flush();
    Message message;
    while (connection.Receive(&message, &io)) {  // messages that arrived before the end count
      const StatusOr<bool> decided = Handle(connection, std::move(message));
      if (!decided.ok()) return decided.status();
      if (!*decided) continue;
      if (!outcome_.ok()) return outcome_;
      peers_.links.push_back(connection.TakeSocket());
      return std::move(peers_);
    }
    if (io != Connection::Io::kOk) return Ended(io);
    if (NowNs() >= until_ns && gave_up) {
      return StartupError(Root() + " (pid " + std::to_string(root_pid_) + ") listens but did not answer within " +
                          SecondsText(config_.timeout_ns) + "; is it stopped?");
    }
    if (NowNs() >= until_ns) {
      // Asks rank 0 for the outcome, which names the missing ranks.
      gave_up = true;
      connection.Queue(MessageType::kGiveUp, "");
      until_ns = NowNs() + kLastWordNs;
      continue;
    }
    HC_RETURN_IF_ERROR(Check(config_));
    pollfd polled{connection.fd(), static_cast<short>(connection.flushed() ? POLLIN : POLLIN | POLLOUT), 0};
    poll(&polled, 1, PollTimeoutMs(std::min(until_ns, NextCheckNs(config_))));
  }
}

StatusOr<bool> Worker::Handle(Connection& connection, Message message) {
  Status status;
  switch (message.type) {
    case MessageType::kOutcome: {
      const std::optional<Status> outcome = DecodeStatus(message.payload);
      if (!outcome || (outcome->ok() && !answered_)) {
        return Status(StatusCode::kCorrupt, words_.Name(0) + " sent a start-up outcome that does not decode");
      }
      outcome_ = *outcome;
      return true;
    }
    case MessageType::kOffer:
      status = TakeOffer(std::move(message));
      break;
    case MessageType::kDescriptors:
      status = TakeDescriptors(std::move(message));
      break;
    case MessageType::kAnnouncement:
      peers_.announcement = std::move(message.payload);
      break;
    default:
      return Status(StatusCode::kCorrupt, words_.Name(0) + " sent a start-up message of type " +
                                              std::to_string(static_cast<int>(message.type)) + " to a rank");
  }
  if (!answered_ && (!status.ok() || (offered_ && awaited_ == 0))) {
    // A failure here fails start-up on every rank: rank 0 sends it back as the outcome.
    answered_ = true;
    connection.Queue(MessageType::kReady, EncodeStatus(status));
    connection.Flush();
  }
  return false;
}

Status Worker::TakeOffer(Message message) {
  const auto size = static_cast<size_t>(config_.identity.size);
  const std::optional<std::vector<uint32_t>> numbers = DecodeNumbers(message.payload);
  if (offered_ || !numbers || numbers->size() != size + 1 || (*numbers)[0] > size || message.fds.size() != 1) {
    return Status(StatusCode::kCorrupt, words_.Name(0) + "'s start-up offer does not decode");
  }
  StatusOr<std::shared_ptr<Arena>> arena = Arena::Attach(message.fds[0].release());
  if (!arena.ok()) return arena.status();
  if ((*arena)->layout().ranks != config_.identity.size) {
    return Status(StatusCode::kCorrupt, words_.Name(0) + " offered an arena for " +
                                            std::to_string((*arena)->layout().ranks) + " ranks, the job has " +
                                            std::to_string(size));
  }
  offered_ = true;
  awaited_ = (*numbers)[0];
  peers_.arena = std::move(*arena);
  peers_.pids.assign(numbers->begin() + 1, numbers->end());
  peers_.pidfds.resize(size);
  return Status::Ok();
}

Status Worker::TakeDescriptors(Message message) {
  if (answered_) return Status::Ok();  // the offer has failed or is complete
  const std::optional<std::vector<uint32_t>> ranks = DecodeNumbers(message.payload);
  const bool good = offered_ && ranks && ranks->size() == message.fds.size() && ranks->size() <= awaited_ &&
                    std::ranges::all_of(*ranks, [&](uint32_t rank) { return rank < peers_.pidfds.size(); });
  if (!good) return Status(StatusCode::kCorrupt, words_.Name(0) + "'s start-up descriptors do not decode");
  for (size_t i = 0; i < ranks->size(); ++i) peers_.pidfds[(*ranks)[i]] = std::move(message.fds[i]);
  awaited_ -= ranks->size();
  return Status::Ok();
}

Status Worker::Ended(Connection::Io io) const {
  if (io == Connection::Io::kNoFds) return TooManyFiles(config_.identity.size);
  const std::string pid = " (pid " + std::to_string(root_pid_) + ")";
  if (io == Connection::Io::kGarbage) {
    return StartupError("the process" + pid + " that listens on '" + place_.socket +
                        "' does not speak horocache's start-up protocol");
  }
  RemoveIfStale(place_);
  return StartupError(Root() + pid +
                      " closed the connection during start-up: it ended (see its output for the cause), or this " +
                      "process is one too many in the job");
}

Status CheckConfig(const BootstrapConfig& config) {
  const Identity& identity = config.identity;
  if (identity.cross_size > 1) {
    return Status(StatusCode::kUnsupported, "the job has " + std::to_string(identity.size) + " ranks on " +
                                                std::to_string(identity.cross_size) + " hosts (" + identity.source +
                                                "), which do not share memory; only the ranks of one host meet here");
  }
  if (identity.size < 1 || identity.rank < 0 || identity.rank >= identity.size) {
    return Status(StatusCode::kInvalidArgument, "rank " + std::to_string(identity.rank) + " of " +
                                                    std::to_string(identity.size) + " ranks is not possible");
  }
  return CheckAnnouncement(config.announcement);
}

StatusOr<Peers> Alone(const BootstrapConfig& config) {
  ArenaLayout layout = config.layout;
  layout.ranks = 1;
  Peers peers;
  peers.arena = Arena::CreateOnHeap(layout);
  if (peers.arena == nullptr) {
    return Status(StatusCode::kOutOfMemory, "cannot map memory for one rank with " + std::to_string(layout.data_bytes) +
                                                " bytes; lower HOROCACHE_SHM_BYTES or raise the memory limit");
  }
  peers.pidfds.push_back(OpenPidfd(getpid()));
  peers.pids.push_back(getpid());
  peers.links.emplace_back();
  peers.announcement = config.announcement;
  return peers;
}

StatusOr<Peers> Together(const BootstrapConfig& config) {
  const int64_t deadline_ns = NowNs() + config.timeout_ns;
  StatusOr<SocketPlace> place = FindRendezvous(config);
  if (!place.ok()) return place.status();
  if (config.identity.rank != 0) return Worker(config, *place, deadline_ns).Run();
  StatusOr<std::unique_ptr<Listener>> listener = Listener::Open(*place);
  if (!listener.ok()) return listener.status();
  if (*listener == nullptr) return Worker(config, *place, deadline_ns).Run();
  return BootstrapRoot(config, std::move(*listener), deadline_ns);
}

}  // namespace

void Peers::CloseInChild() {
  for (UniqueFd& fd : pidfds) fd.Close();
  for (UniqueFd& fd : links) fd.Close();
  if (arena != nullptr) arena->CloseFd();
  if (duplicates != nullptr) duplicates->CloseInChild();
}

Status CheckAnnouncement(const std::string& announcement) {
  if (announcement.size() <= kMaxAnnouncement) return Status::Ok();
  return InvalidArgumentError("the announcement of rank 0 has " + std::to_string(announcement.size()) +
                              " bytes; at most " + std::to_string(kMaxAnnouncement) + " are possible");
}

StatusOr<Peers> Bootstrap(const BootstrapConfig& config) {
  HC_RETURN_IF_ERROR(CheckConfig(config));
  StatusOr<Peers> peers = config.identity.size == 1 ? Alone(config) : Together(config);
  if (!peers.ok()) return peers;
  peers->arena->CloseFd();
  peers->arena->state(config.identity.rank).store(RankState::kRunning, std::memory_order_release);
  return peers;
}

}  // namespace horocache::net
