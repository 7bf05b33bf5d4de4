// Carries writes of this rank into the blocks of ranks on other hosts, on a thread of its own.
//
// Writes to one rank keep their order. A write takes its payload along, so its poster never waits: neither for the
// network nor for a rank that has stopped. The protocol bounds what is queued, because a rank writes no batch before
// its cell is free.
//
// Note [The end of a carrier]
// The ranks of a window close it at different times, and MPI frees a window on all ranks at once. So a carrier goes on
// after Finish: it carries what is queued, says goodbye, and ends when all others have said goodbye. Its destructor
// waits for that for a second. If a rank does not come, or if a call of MPI does not return because a rank has died or
// is stopped, the thread and its memory are left to MPI until the process ends.
//
// Threads: any; one mutex.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "moe/remote/transport.h"

namespace horocache::moe {

class Carrier {
 public:
  // The pause between two looks for what has arrived, when none has for `idle_ns`: an eighth of that, so that looking
  // adds little to a short wait and costs little in a long one.
  static int64_t NapNs(int64_t idle_ns);

  // `on_news`: called by the carrier's thread when something has arrived in this rank's block, or writing has failed;
  // never after the destructor has returned.
  Carrier(std::unique_ptr<Transport> transport, int ranks, std::function<void()> on_news);
  ~Carrier();
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  // Memory for a payload of `bytes` bytes.
  RemoteBuffer Take(size_t bytes);
  void Post(RemoteWrite write);
  // A thread begins to wait for what others write.
  void Hurry();
  // Drops what is queued for a rank, and all that follows. `name`: of the rank.
  void Lose(int peer, const std::string& name);
  // No write follows. Idempotent.
  void Finish();
  // True if every arrival calls `on_news`.
  bool sees_arrivals() const { return sees_arrivals_; }
  // Not ok once writes cannot be carried any more.
  Status broken() const;

 private:
  struct Shared;

  const bool sees_arrivals_, survives_losses_;
  const std::shared_ptr<Shared> shared_;  // with the thread, which may hang
  NamedThread thread_;
};

}  // namespace horocache::moe
