// Frames between the ranks that share an arena: from every rank to every rank, itself included.
//
// Note [Slots and chunks]
// Each ordered pair of ranks has a few slots, words of one cache line, which the sender fills in turn. A frame's bytes
// lie in a chunk of the sender's own pool, and the slot names the chunk. A small frame's bytes lie in the cache line
// beside the slots instead, if that line is free. The receiver polls its next slot of every sender: the frame has
// arrived once the slot's stamp equals the frame's number. The receiver counts the frames that it has taken in a word
// of its own, and from this count the sender learns which slots and chunks are free again. Each of these words has one
// writer, so a rank may die at any point. The memory is one pool for each rank and 132 bytes for each pair.
//
// A sender without room sets its `blocked` word and checks once more. A receiver that has taken frames clears that word
// and rings, if it was set. A pair may not hold more chunks than are free for the other pairs, so receivers that have
// stopped do not take all of them.
#pragma once

#include <memory>

#include "net/message_link.h"
#include "net/shm/arena.h"

namespace horocache::net {

std::unique_ptr<Link> MakeShmLink(std::shared_ptr<Arena> arena, int rank);

}  // namespace horocache::net
