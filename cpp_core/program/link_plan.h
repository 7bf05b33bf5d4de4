// Chooses how a program uses its links: the protocol, the number of slots and the message size.
#pragma once

#include <cstdint>
#include <string>

#include "program/chunk_layout.h"
#include "program/links.h"

namespace horocache::program {

// The program's own choices; zeros and kAuto leave a choice to PlanLinks.
struct LinkWish {
  Protocol protocol = Protocol::kAuto;
  int slots = 0;
  int64_t message_bytes = 0;
};

// Fills `plan`. Returns false, with the reason in `why`, if the messages do not fit. Equal on all ranks.
bool PlanLinks(const Program& program, const Wirings& wirings, const Sizes& sizes, const LinkWish& wish, Links* links,
               LinkPlan* plan, std::string* why);

}  // namespace horocache::program
