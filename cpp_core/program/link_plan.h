// How a program uses its links: the protocol, and how its messages are cut.
#pragma once

#include <cstdint>
#include <string>

#include "program/links.h"
#include "program/sizes.h"

namespace horocache::program {

// What the program asks for; zeros and kAuto leave it to PlanLinks.
struct LinkWish {
  Protocol protocol = Protocol::kAuto;
  int slots = 0;
  int64_t message_bytes = 0;
};

// False if there is no room; then `why` says so. The same on all ranks.
bool PlanLinks(const Program& program, const Wirings& wirings, const Sizes& sizes, const LinkWish& wish, Links* links,
               LinkPlan* plan, std::string* why);

}  // namespace horocache::program
