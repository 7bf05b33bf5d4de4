// The flight record of a rank, written on request or after an error: one JSON object. Pure: no clock, no file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "observe/flight_recorder.h"
#include "observe/trace_text.h"

namespace horocache::observe {

// An operation that is not finished.
struct PendingOperation {
  std::string name;
  wire::Op op = wire::Op::kAllreduce;
  uint32_t process_set = 0;
  uint32_t tensors = 0;
  int64_t handle = -1;
  int64_t bytes = 0;
  int64_t submitted_ns = 0;
};

// The ranks of a process set.
struct SetMembers {
  uint32_t number = 0;
  std::vector<int> ranks;
};

struct FlightReport {
  TimelineHeader rank;
  int pid = 0;
  std::string job;
  std::string why;     // the error, or that a user has asked for the record
  std::string stacks;  // of the program's threads, as Python prints them; empty if not available
  int64_t now_ns = 0;
  std::vector<SetMembers> sets;  // all but the global one
  std::vector<PendingOperation> pending;
  FlightRecorder::Snapshot last;
};

std::string FlightText(const FlightReport& report);

}  // namespace horocache::observe
