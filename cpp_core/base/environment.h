// The only place in C++ that reads the process environment (lint enforces it).
#pragma once

#include <map>
#include <string>

namespace horocache {

// The variables that concern a job: HOROCACHE_ and HOROVOD_ names, and those by which launchers tell a process its rank
// (see net/identity.h).
std::map<std::string, std::string> ReadEnvironment();

// Whether a variable of glibc tells malloc how much free memory a process keeps.
bool EnvironmentTunesMalloc();

}  // namespace horocache
