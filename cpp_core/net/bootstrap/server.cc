#include "net/bootstrap/server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "net/bootstrap/common.h"
#include "net/bootstrap/connection.h"
#include "net/bootstrap/contenders.h"
#include "net/bootstrap/duplicate_rank_watch.h"
#include "net/bootstrap/handshake.h"
#include "net/bootstrap/open_files.h"

namespace horocache::net {
namespace {

constexpr int64_t kSilenceNs = 5 * kNsPerS;      // time for a new connection to send its hello
constexpr int64_t kGraceNs = kNsPerS / 2;        // wait after a failure for ranks that are about to connect
constexpr int64_t kSendOutcomeNs = kNsPerS;      // limit for sending the outcome of a failure
constexpr int64_t kSettleNs = 3 * kNsPerS;       // wait for the ranks of a second job, where one is likely
constexpr int64_t kRivalLookNs = 50 * kNsPerMs;  // interval of the search for rivals (contenders.h)
constexpr size_t kDescriptorsPerMessage = 64;

class Root {
 public:
  Root(const BootstrapConfig& config, std::unique_ptr<Listener> listener, int64_t deadline_ns)
      : config_(config),
        size_(config.identity.size),
        deadline_ns_(deadline_ns),
        listener_(std::move(listener)),
        hello_(OwnHello(config)),
        pidfd_(OpenPidfd(getpid())) {}

  StatusOr<Peers> Run();

 private:
  struct Client {
    explicit Client(UniqueFd socket) : connection(std::move(socket)) {}
    Connection connection;
    int64_t silent_until_ns = 0;
    int pid = 0;
    std::optional<Hello> hello;
    UniqueFd pidfd;
    bool ready = false;
    bool gone = false;  // the connection ended or broke the protocol
    int rank() const { return static_cast<int>(hello->rank); }
  };
  enum class Phase { kGathering, kAttaching, kDeciding };

  bool Settled() const;
  bool EverybodyIsHere() const;
  // True if other jobs may have this job's name: see Note [Jobs that share an address and port] in contenders.h.
  bool HasSharedName() const { return !config_.identity.shared_claim.empty(); }
  bool AreOneJob();
  void FailDuplicateRank(const Client& client, int other_pid);
  void LookForRivals();
  std::vector<int> Members() const;
  void Fail(Status status, int64_t grace_ns = kGraceNs);
  void Wait();
  void Accept();
  void Serve(Client& client);
  void Handle(Client& client, Message message);
  void HandleHello(Client& client, Message message);
  void HandleEnd(Client& client, Connection::Io io);
  void Sweep();
  void Advance();
  void Offer();
  Status Missing(const std::string& who_waited) const;
  std::string Dropped() const;
  Status Outcome() const;
  Status Reject();
  Peers Finish();

  const BootstrapConfig& config_;
  const StartupPhrases words_{config_};
  const int size_;
  const int64_t deadline_ns_;
  std::unique_ptr<Listener> listener_;
  const Hello hello_;
  UniqueFd pidfd_;
  std::shared_ptr<Arena> arena_;
  Phase phase_ = Phase::kGathering;
  std::vector<std::unique_ptr<Client>> clients_;
  Status failure_;
  int64_t grace_until_ns_ = 0;
  std::vector<Contender> rivals_;  // found by the last search
  int64_t look_again_ns_ = 0;
  bool is_certain_ = true;  // true: the ranks belong to one job
  int64_t settled_ns_ = 0;  // when a job that is not certain may begin; 0: not all ranks have connected
  int strangers_ = 0;       // refused connections of other users
  int garbage_ = 0;         // dropped connections that did not say hello
};

void Root::Fail(Status status, int64_t grace_ns) {
  // Once the outcome is being sent, it is the peer monitor that detects the end of a rank.
  if (!failure_.ok() || phase_ == Phase::kDeciding) return;
  failure_ = std::move(status);
  grace_until_ns_ = NowNs() + grace_ns;
}

bool Root::EverybodyIsHere() const {
  std::set<uint32_t> here;
  for (const auto& client : clients_) {
    if (client->hello && client->hello->rank != 0) here.insert(client->hello->rank);
  }
  return static_cast<int>(here.size()) >= size_ - 1;
}

bool Root::Settled() const {
  if (!failure_.ok()) return (EverybodyIsHere() && rivals_.empty()) || NowNs() >= grace_until_ns_;
  const auto answered = [](const auto& client) { return client->gone || client->connection.flushed(); };
  return phase_ == Phase::kDeciding && (std::ranges::all_of(clients_, answered) || NowNs() >= deadline_ns_);
}

// Pids: this process's first, then by rank.
std::vector<int> Root::Members() const {
  std::vector<std::pair<uint32_t, int>> by_rank = {{0, getpid()}};
  for (const auto& client : clients_) {
    if (client->hello) by_rank.emplace_back(client->hello->rank, client->pid);
  }
  std::sort(by_rank.begin() + 1, by_rank.end());
  std::vector<int> pids;
  for (const auto& [rank, pid] : by_rank) pids.push_back(pid);
  return pids;
}

void Root::LookForRivals() {
  if (NowNs() < look_again_ns_) return;
  rivals_ = FindContenders(config_.identity.shared_claim, Members());
  look_again_ns_ = NowNs() + kRivalLookNs;
  if (rivals_.empty() && !failure_.ok()) grace_until_ns_ = std::min(grace_until_ns_, NowNs() + kGraceNs);
}

// Called when all ranks have connected. True if they may begin. Fails start-up if they seem to belong to two jobs;
// false while that is not clear.
bool Root::AreOneJob() {
  if (!HasSharedName()) return true;
  if (NowNs() < look_again_ns_) return false;
  LookForRivals();
  if (!rivals_.empty()) return false;
  const std::vector<int> members = Members();
  const CommonOrigin kinship = FindKinship(config_.identity.shared_claim, members);
  is_certain_ = kinship.one_starter && kinship.same_command;
  if (is_certain_) return true;
  if (kinship.one_starter || kinship.same_command) {
    const int64_t now = NowNs();
    if (settled_ns_ == 0) settled_ns_ = now + std::clamp<int64_t>((deadline_ns_ - now) / 2, 0, kSettleNs);
    return now >= settled_ns_;
  }
  std::string text;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    text +=
        "\n  rank " + std::to_string(rank) + " (pid " + std::to_string(members[rank]) + "): " + kinship.commands[rank];
  }
  Fail(StartupError("the ranks of job '" + Printable(hello_.job) +
                    "' run different commands, and different processes have started them, so they may be of two jobs" +
                    TwoJobsAdvice(config_.identity.shared_claim) + ":" + text));
  return false;
}

StatusOr<Peers> Root::Run() {
  // The socket already listens, so the other ranks can connect meanwhile.
  ArenaLayout layout = config_.layout;
  layout.ranks = size_;
  StatusOr<std::shared_ptr<Arena>> arena = Arena::CreateShared(layout);
  if (arena.ok()) {
    arena_ = std::move(*arena);
  } else {
    Fail(Status(arena.status().code(), words_.Name(0) + ": " + arena.status().message()));
  }
  while (!Settled()) {
    Wait();
    for (size_t i = 0; i < clients_.size(); ++i) Serve(*clients_[i]);
    if (phase_ != Phase::kDeciding) Accept();
    Sweep();
    Advance();
  }
  if (!failure_.ok()) return Reject();
  return Finish();
}

void Root::Wait() {
  int64_t until = failure_.ok() ? deadline_ns_ : grace_until_ns_;
  std::vector<pollfd> polled = {{listener_->fd(), POLLIN, 0}};
  for (const auto& client : clients_) {
    if (!client->hello) until = std::min(until, client->silent_until_ns);
    if (client->gone) continue;
    polled.push_back(
        {client->connection.fd(), static_cast<short>(client->connection.flushed() ? POLLIN : POLLIN | POLLOUT), 0});
    polled.push_back({client->pidfd.get(), POLLIN, 0});  // poll skips -1
  }
  const bool settles = settled_ns_ > 0 && phase_ == Phase::kGathering && failure_.ok();
  if (!rivals_.empty() || settles) until = std::min(until, look_again_ns_);
  until = std::min(until, NextCheckNs(config_));
  poll(polled.data(), polled.size(), PollTimeoutMs(until));  // the caller checks every descriptor in any case
}

void Root::Accept() {
  const size_t most = 2 * static_cast<size_t>(size_) + 64;
  while (true) {
    UniqueFd socket(accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (OutOfFiles(errno)) Fail(TooManyFiles(size_), 0);
      return;
    }
    const PeerCredentials credentials = CredentialsOf(socket.get());
    if (credentials.uid != geteuid()) {
      ++strangers_;
    } else if (clients_.size() >= most) {
      ++garbage_;
    } else {
      auto client = std::make_unique<Client>(std::move(socket));
      client->pid = credentials.pid;
      client->silent_until_ns = NowNs() + kSilenceNs;
      clients_.push_back(std::move(client));
      Serve(*clients_.back());  // its hello has usually arrived
    }
  }
}

void Root::Serve(Client& client) {
  if (client.gone) return;
  Connection::Io io = client.connection.Flush();
  Message message;
  while (!client.gone && client.connection.Receive(&message, &io)) Handle(client, std::move(message));
  if (client.gone) return;
  if (io != Connection::Io::kOk) {
    HandleEnd(client, io);
    return;
  }
  // A forked child of the rank may keep the socket open. The pidfd shows the end of the rank itself.
  pollfd ended{client.pidfd.get(), POLLIN, 0};
  if (client.pidfd.get() >= 0 && poll(&ended, 1, 0) == 1) HandleEnd(client, Connection::Io::kEnd);
}

void Root::Handle(Client& client, Message message) {
  if (!client.hello) {
    HandleHello(client, std::move(message));
    return;
  }
  const std::string who = words_.Name(client.rank()) + " (pid " + std::to_string(client.pid) + ")";
  if (message.type == MessageType::kGiveUp) {
    Fail(Missing(who), 0);
  } else if (const std::optional<Status> status = DecodeStatus(message.payload);
             message.type == MessageType::kReady && phase_ == Phase::kAttaching && status) {
    client.ready = true;
    if (!status->ok()) Fail(Status(status->code(), who + ": " + status->message()));
  } else {
    Fail(StartupError(who + " sent a start-up message of type " + std::to_string(static_cast<int>(message.type)) +
                      " that was not expected; do all ranks run the same version?"));
    client.gone = true;
  }
}

void Root::HandleHello(Client& client, Message message) {
  std::optional<Hello> hello = DecodeHello(message.payload);
  if (message.type != MessageType::kHello || !hello || hello->job != hello_.job) {
    client.gone = true;
    ++garbage_;
    return;
  }
  client.hello = std::move(hello);
  if (!message.fds.empty()) client.pidfd = std::move(message.fds[0]);
  if (client.pid == 0) client.pid = static_cast<int>(client.hello->pid);
  const auto pid_text = [](int pid) { return "pid " + std::to_string(pid); };
  const Hello& its = *client.hello;
  const std::string who = words_.Name(static_cast<int>(its.rank)) + " (" + pid_text(client.pid) + ")";
  if (its.size != hello_.size || its.rank >= hello_.size) {
    Fail(StartupError("the ranks of job '" + Printable(hello_.job) + "' disagree about its size: " + words_.Name(0) +
                      " (" + pid_text(getpid()) + ") has size " + std::to_string(size_) + ", " + who + " has size " +
                      std::to_string(its.size) + "; start all of them with the same launcher and number of ranks"));
    return;
  }
  for (const auto& other : clients_) {
    const bool same = other.get() != &client && other->hello && other->hello->rank == its.rank;
    if (!same && its.rank != 0) continue;
    FailDuplicateRank(client, its.rank == 0 ? getpid() : other->pid);
    return;
  }
  // Outcome() makes the table of differences later, from the hellos of all ranks that have connected by then.
  if (!Differences({&hello_, &its}).empty()) Fail(Status(StatusCode::kVersionSkew, ""));
}

void Root::FailDuplicateRank(const Client& client, int other_pid) {
  if (HasSharedName()) LookForRivals();
  // Processes of either job that have not connected yet get the error when they connect.
  const int64_t grace_ns = rivals_.empty() ? kGraceNs : std::max<int64_t>(deadline_ns_ - NowNs(), 0);
  Fail(StartupError(
           ClaimedTwice(words_.Name(client.rank()), hello_.job, other_pid, client.pid, config_.identity.shared_claim)),
       grace_ns);
}

void Root::HandleEnd(Client& client, Connection::Io io) {
  client.gone = true;
  if (!client.hello) {
    ++garbage_;
  } else if (io == Connection::Io::kNoFds) {
    Fail(TooManyFiles(size_), 0);
  } else {
    Fail(StartupError(words_.Rank(client.rank()) + " (pid " + std::to_string(client.pid) +
                      ") ended during start-up; see its output for the cause"));
  }
}

void Root::Sweep() {
  const int64_t now = NowNs();
  std::erase_if(clients_, [&](const auto& client) {
    if (client->hello) return false;
    const bool silent = !client->gone && now >= client->silent_until_ns;
    if (silent) ++garbage_;
    return client->gone || silent;
  });
}

void Root::Advance() {
  if (!failure_.ok()) {
    if (!rivals_.empty()) LookForRivals();
    return;
  }
  if (phase_ == Phase::kGathering && EverybodyIsHere() && AreOneJob()) Offer();
  const bool ready = std::ranges::all_of(clients_, [](const auto& client) { return !client->hello || client->ready; });
  if (phase_ == Phase::kAttaching && ready) {
    phase_ = Phase::kDeciding;
    std::erase_if(clients_, [](const auto& client) { return !client->hello; });
    for (const auto& client : clients_) client->connection.Queue(MessageType::kOutcome, EncodeStatus(Status::Ok()));
    for (const auto& client : clients_) Serve(*client);
  }
  if (NowNs() >= deadline_ns_) Fail(Missing(""), 0);
  if (const Status stopped = Check(config_); !stopped.ok())
    Fail(stopped, stopped.code() == StatusCode::kAborted ? 0 : kGraceNs);  // the user waits after an interrupt
}

// See Note [Start-up]. The send queues borrow the descriptors; arena_, pidfd_ and clients_ outlive them.
void Root::Offer() {
  phase_ = Phase::kAttaching;
  std::vector<uint32_t> numbers(static_cast<size_t>(size_) + 1);
  std::vector<std::pair<uint32_t, int>> pidfds;
  const auto add = [&](uint32_t rank, int pid, int pidfd) {
    numbers[rank + 1] = static_cast<uint32_t>(pid);
    if (pidfd >= 0) pidfds.emplace_back(rank, pidfd);
  };
  add(0, getpid(), pidfd_.get());
  for (const auto& client : clients_) {
    if (client->hello) add(client->hello->rank, client->pid, client->pidfd.get());
  }
  numbers[0] = static_cast<uint32_t>(pidfds.size());
  for (const auto& client : clients_) {
    if (!client->hello) continue;
    if (!config_.announcement.empty()) client->connection.Queue(MessageType::kAnnouncement, config_.announcement);
    client->connection.Queue(MessageType::kOffer, EncodeNumbers(numbers), {arena_->fd()});
    for (size_t first = 0; first < pidfds.size(); first += kDescriptorsPerMessage) {
      std::vector<uint32_t> ranks;
      std::vector<int> fds;
      for (size_t i = first; i < std::min(pidfds.size(), first + kDescriptorsPerMessage); ++i) {
        ranks.push_back(pidfds[i].first);
        fds.push_back(pidfds[i].second);
      }
      client->connection.Queue(MessageType::kDescriptors, EncodeNumbers(ranks), fds);
    }
  }
  for (const auto& client : clients_) client->connection.Flush();  // the next Serve detects a closed connection
}

std::string Root::Dropped() const {
  std::string text;
  if (garbage_ > 0) text += "; connections dropped because they did not say hello: " + std::to_string(garbage_);
  if (strangers_ > 0) text += "; connections of other users refused: " + std::to_string(strangers_);
  return text;
}

Status Root::Missing(const std::string& who_waited) const {
  std::vector<int> missing, silent;
  for (int rank = 1; rank < size_; ++rank) {
    const auto found =
        std::ranges::find_if(clients_, [&](const auto& client) { return client->hello && client->rank() == rank; });
    if (found == clients_.end()) {
      missing.push_back(rank);
    } else if (!(*found)->ready) {
      silent.push_back(rank);
    }
  }
  const std::string within = " within " + SecondsText(config_.timeout_ns) +
                             (who_waited.empty() ? "" : " after " + who_waited + " did") + Dropped();
  if (!rivals_.empty() && missing.empty()) {
    const Contender& rival = rivals_.front();
    return StartupError("process " + std::to_string(rival.pid) + " (" + rival.command + ") claims " +
                        words_.Name(rival.rank) + " of job '" + Printable(hello_.job) +
                        "' in its environment, as another process does, and did not " + words_.Come() + within +
                        TwoJobsAdvice(config_.identity.shared_claim));
  }
  if (missing.empty()) {
    return StartupError(words_.Ranks(silent) + " " + words_.Came() + " but did not answer" + within);
  }
  return StartupError(words_.Ranks(missing) + " did not " + words_.Come() + within +
                      ". Is every rank running, on this host, and not waiting for another rank " + words_.Before() +
                      "? HOROCACHE_START_TIMEOUT sets the time");
}

Status Root::Outcome() const {
  if (failure_.code() != StatusCode::kVersionSkew) return failure_;
  std::vector<const Hello*> hellos = {&hello_};
  for (const auto& client : clients_) {
    if (client->hello) hellos.push_back(&*client->hello);
  }
  std::ranges::sort(hellos, {}, &Hello::rank);
  return Status(StatusCode::kVersionSkew,
                "the ranks of job '" + Printable(hello_.job) + "' were started with different versions or settings:" +
                    Differences(hellos, config_.job_ranks) + "\nMake them equal on all ranks.");
}

Status Root::Reject() {
  listener_.reset();  // before a rank gets the outcome: if it starts again at once, it must not come to this start-up
  const Status outcome = Outcome();
  const std::string encoded = EncodeStatus(ForOthers(words_.Name(0), outcome));
  for (const auto& client : clients_) {
    if (client->hello && !client->gone) client->connection.Queue(MessageType::kOutcome, encoded);
  }
  const int64_t until = NowNs() + kSendOutcomeNs;
  while (NowNs() < until) {
    std::vector<pollfd> polled;
    for (const auto& client : clients_) {
      if (client->gone || !client->hello) continue;
      if (client->connection.Flush() != Connection::Io::kOk) client->gone = true;
      if (!client->gone && !client->connection.flushed()) polled.push_back({client->connection.fd(), POLLOUT, 0});
    }
    if (polled.empty()) break;
    poll(polled.data(), polled.size(), PollTimeoutMs(until));
  }
  return outcome;
}

Peers Root::Finish() {
  Peers peers;
  if (!is_certain_) {
    peers.duplicates =
        std::make_shared<DuplicateRankWatch>(std::move(listener_), config_, Members(), NowNs() + config_.timeout_ns);
  }
  listener_.reset();
  peers.pidfds.resize(static_cast<size_t>(size_));
  peers.links.resize(static_cast<size_t>(size_));
  peers.pids.resize(static_cast<size_t>(size_));
  peers.pidfds[0] = std::move(pidfd_);
  peers.pids[0] = getpid();
  for (const auto& client : clients_) {
    peers.pidfds[client->hello->rank] = std::move(client->pidfd);
    peers.pids[client->hello->rank] = client->pid;
    peers.links[client->hello->rank] = client->connection.TakeSocket();
  }
  peers.arena = std::move(arena_);
  peers.announcement = config_.announcement;
  return peers;
}

}  // namespace

StatusOr<Peers> BootstrapRoot(const BootstrapConfig& config, std::unique_ptr<Listener> listener, int64_t deadline_ns) {
  return Root(config, std::move(listener), deadline_ns).Run();
}

}  // namespace horocache::net
