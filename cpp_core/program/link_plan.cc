#include "program/link_plan.h"

#include <algorithm>

#include "base/memory.h"
#include "program/execution.h"
#include "program/shm_links.h"

namespace horocache::program {
namespace {

// Bytes of a message if the program does not set the tile size. A few such messages fit into a core's cache.
constexpr int64_t kMessageBytes = 256 << 10;
// The longest message, in bytes, for which kAuto chooses LL128. Measured, see docs/performance.md; the same measurement
// shows that LL gains nothing between processors with coherent caches.
constexpr int64_t kMostLL128Bytes = 512;

Protocol ProtocolFor(Protocol wanted, int64_t message_bytes) {
  if (wanted != Protocol::kAuto) return wanted;
  return message_bytes <= kMostLL128Bytes ? Protocol::kLL128 : Protocol::kDirect;
}

}  // namespace

bool PlanLinks(const Program& program, const Wirings& wirings, const Sizes& sizes, const LinkWish& wish, Links* links,
               LinkPlan* plan, std::string* why) {
  const int64_t element = sizes.element_bytes();
  const int64_t whole = RoundUp(sizes.MostPartElements() * program.most_count * element, int64_t{8});
  plan->wirings = &wirings;
  plan->protocol = ProtocolFor(wish.protocol, whole);
  plan->slots = std::max(program.min_slots, wish.slots > 0 ? wish.slots : links->usual_slots());
  const int64_t wanted = wish.message_bytes > 0 ? wish.message_bytes : kMessageBytes;
  const int64_t room = links->MostSlotBytes(plan->protocol, wirings, plan->slots);
  const int64_t most = links->most_message_bytes();
  const int64_t least = RoundUp(program.most_count * element, int64_t{8});
  plan->slot_bytes = std::max(least, std::min({whole, wanted, room, most}));
  if (plan->slot_bytes > most) {
    *why = "a message of one element of each of " + std::to_string(program.most_count) + " chunks has " +
           std::to_string(least) + " bytes, and between hosts one has " + std::to_string(most) + " at most";
    return false;
  }
  if (plan->slot_bytes > room) {
    *why = "its " + std::to_string(wirings.most_ends) + " connections of " + std::to_string(plan->slots) +
           " slots have no room in shared memory; raise HOROCACHE_SHM_BYTES";
    return false;
  }
  plan->tiles = TilesOf(sizes, TileElements(program, sizes, plan->slot_bytes));
  if (plan->messages() <= ShmLinks::kMostMessages) return true;
  *why = "it would send " + std::to_string(plan->messages()) + " messages on one connection; give it longer tiles";
  return false;
}

}  // namespace horocache::program
