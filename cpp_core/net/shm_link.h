// Frames between the ranks that share an arena: every rank to every rank, itself included.
//
// Note [Slots and chunks]
// For each ordered pair of ranks there are a few slots, words of one cache line, which the sender fills in turns. A
// frame's bytes lie in a chunk of the sender's own small pool, which its slot names; those of a small one in the line
// beside the slots, if no other is there. The receiver looks at its next slot of every sender: the frame is there once
// the slot's stamp is its number. What it has taken it counts in a word of its own, and by that word the sender learns
// that slots and chunks are free again. So every word has one writer, and a rank may die anywhere. Memory is a pool for
// each rank and 132 bytes for each pair.
//
// A sender without room says so in its `blocked` word and looks once more; a receiver that takes a frame looks at that
// word and rings. A pair may not have more chunks than are left for the others, so receivers that have stopped do not
// take all of them.
#pragma once

#include <memory>

#include "net/arena.h"
#include "net/link.h"

namespace horocache::net {

std::unique_ptr<Link> MakeShmLink(std::shared_ptr<Arena> arena, int rank);

}  // namespace horocache::net
