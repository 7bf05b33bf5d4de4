// The operations that can run while some ranks have joined, that is, have no data of their own.
//
// Note [Join]
// A rank that has no more data calls join(). Controller::SubmitJoin keeps the request until the rank's earlier requests
// are done, because these need its data; then the rank raises kJoining, and FillRequests sends the request with the
// round that gathers. Rank 0 notes it (NoteJoin) and names the rank to all ranks in its response list (ApplyJoined).
// From the next round on, the rank sets the bit of every cache entry (WriteBitvector), so that it holds up nothing, and
// it takes part in operations without data. Coordinator::Respond waits for requests of the other ranks only. When all
// ranks have joined, rank 0 answers with the rank that joined last (AllJoined), and every join() returns it
// (ApplyAllJoined).
#pragma once

#include "base/status.h"
#include "control/rank_set.h"
#include "wire/message.h"

namespace horocache::control {

// Ok if the operation can run while the `joined` ranks take part without data. Equal arguments give equal results on
// all ranks, so a cached operation needs no coordinator for this check.
Status CheckJoined(const wire::Signature& signature, const RankSet& joined, const RankNames& names = {});

}  // namespace horocache::control
