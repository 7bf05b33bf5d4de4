#include "program/connection_map.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace horocache::program {
namespace {

using Name = std::tuple<int32_t, int32_t, int32_t>;  // sender, receiver, channel

int64_t MessagesOf(const RankProgram& program, const ThreadBlock& thread_block) {
  const auto begin = program.steps.begin() + thread_block.first_step;
  return std::count_if(begin, begin + thread_block.num_steps, [](const Step& step) { return Pushes(step.op); });
}

}  // namespace

Wirings WireUp(const Program& program) {
  Wirings wirings;
  wirings.ranks.resize(static_cast<size_t>(program.ranks));
  std::map<Name, Endpoint*> senders, receivers;
  for (int32_t rank = 0; rank < program.ranks; ++rank) {
    const RankProgram& one = program.programs[static_cast<size_t>(rank)];
    Wiring& wiring = wirings.ranks[static_cast<size_t>(rank)];
    wiring.out.resize(one.thread_blocks.size());
    wiring.in.resize(one.thread_blocks.size());
    for (size_t i = 0; i < one.thread_blocks.size(); ++i) {
      const ThreadBlock& thread_block = one.thread_blocks[i];
      if (thread_block.send >= 0) {
        wiring.out[i] = {thread_block.send, wiring.num_out++, -1, MessagesOf(one, thread_block)};
        senders[{rank, thread_block.send, thread_block.channel}] = &wiring.out[i];
        wirings.most_messages = std::max(wirings.most_messages, wiring.out[i].messages);
      }
      if (thread_block.receive >= 0) {
        wiring.in[i] = {thread_block.receive, wiring.num_in++, -1};
        receivers[{thread_block.receive, rank, thread_block.channel}] = &wiring.in[i];
      }
    }
    wirings.most_ends = std::max({wirings.most_ends, wiring.num_out, wiring.num_in});
  }
  for (const auto& [name, sender] : senders) {
    Endpoint* receiver = receivers.at(name);
    sender->there = receiver->here;
    receiver->there = sender->here;
    receiver->messages = sender->messages;
  }
  return wirings;
}

}  // namespace horocache::program
