#include "net/bootstrap/duplicate_rank_watch.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "net/bootstrap/common.h"
#include "net/bootstrap/connection.h"
#include "net/bootstrap/handshake.h"

namespace horocache::net {
namespace {

constexpr int64_t kHelloNs = 200 * kNsPerMs;  // time for a new connection to send its hello

std::optional<Hello> AwaitHello(Connection& connection) {
  const int64_t until_ns = NowNs() + kHelloNs;
  Connection::Io io = Connection::Io::kOk;
  Message message;
  while (!connection.Receive(&message, &io)) {
    if (io != Connection::Io::kOk || NowNs() >= until_ns) return std::nullopt;
    pollfd polled{connection.fd(), POLLIN, 0};
    poll(&polled, 1, PollTimeoutMs(until_ns));
  }
  return message.type == MessageType::kHello ? DecodeHello(message.payload) : std::nullopt;
}

}  // namespace

std::string TwoJobsAdvice(const std::vector<std::string>& claim) {
  std::vector<std::string> names;
  for (const std::string& line : claim) names.push_back(line.substr(0, line.find('=')));
  return "; " + Join(names, ", ") +
         " are all that names this job: give each job another MASTER_PORT, or set HOROCACHE_JOB_ID to the same text on "
         "its ranks";
}

std::string ClaimedTwice(const std::string& rank, const std::string& job, int one, int other,
                         const std::vector<std::string>& claim) {
  return "two processes claim " + rank + " of job '" + Printable(job) + "': pid " + std::to_string(one) + " and pid " +
         std::to_string(other) +
         (claim.empty() ? "; start one process per rank, and do not call init() in a program that a rank starts with "
                          "its environment"
                        : TwoJobsAdvice(claim));
}

DuplicateRankWatch::DuplicateRankWatch(std::unique_ptr<Listener> listener, const BootstrapConfig& config,
                                       std::vector<int> pids, int64_t until_ns)
    : listener_(std::move(listener)),
      job_(config.identity.job),
      claim_(config.identity.shared_claim),
      pids_(std::move(pids)),
      until_ns_(until_ns) {}

std::string DuplicateRankWatch::Look() {
  UniqueFd socket(accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) return "";
  const PeerCredentials credentials = CredentialsOf(socket.get());
  if (credentials.uid != geteuid()) return "";
  Connection connection(std::move(socket));
  const std::optional<Hello> hello = AwaitHello(connection);
  if (!hello || hello->job != job_ || hello->rank >= pids_.size()) return "";
  const std::string text =
      ClaimedTwice(NameRanks({static_cast<int>(hello->rank)}), job_, pids_[hello->rank], credentials.pid, claim_);
  connection.Queue(MessageType::kOutcome, EncodeStatus(StartupError(text)));
  connection.Flush();
  return text;
}

}  // namespace horocache::net
