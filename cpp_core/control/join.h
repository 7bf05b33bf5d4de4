// Joined ranks: how join() works, and which operations can run while some ranks have joined.
//
// Note [Join]
// A rank that has no more data calls join(). Controller::SubmitJoin (controller.cc) keeps the request until the ranks
// have agreed on the rank's earlier requests, or these have failed, because they need its data; then the rank raises
// kJoining, and FillRequests (round.cc) sends the request with the round that gathers. Rank 0 notes it (NoteJoin,
// negotiation.cc) and names the rank to all ranks in its response list (ApplyJoined, round.cc). From the next round on,
// the rank sets the bit of every cache entry (WriteBitvector, round.cc), so that it holds up nothing.
// Coordinator::Respond waits for requests of the other ranks only. When all ranks have joined, rank 0 answers with the
// rank that joined last (AllJoined, negotiation.cc), and every join() returns it (ApplyAllJoined, round.cc).
//
// Meanwhile the joined rank takes part in the others' operations without data: its plans have kNoOp for an operation,
// from which Lane::BuildFused makes segments without an address, and Collective::joined tells the backend which
// ranks have no data. A reduction leaves these ranks out. No zeros are sent, but a backend may send the neutral element
// of the operation, as mpi's chunked path does.
#pragma once

#include "base/status.h"
#include "control/rank_set.h"
#include "wire/message.h"

namespace horocache::control {

// Ok if the operation can run while the `joined` ranks take part without data. Equal arguments give equal results on
// all ranks, so a cached operation needs no coordinator for this check.
Status CheckJoined(const wire::Signature& signature, const RankSet& joined, const RankNames& names = {});

}  // namespace horocache::control
