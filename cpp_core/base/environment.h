// The only place in C++ that reads the process environment (lint enforces it).
#pragma once

#include <map>
#include <string>

namespace horocache {

// The environment variables that concern a job: HOROCACHE_ and HOROVOD_ names, the variables by which launchers tell a
// process its rank (see net/bootstrap/launcher_environment.h), and TMPDIR.
std::map<std::string, std::string> ReadEnvironment();

// True if an environment variable of glibc sets how much free memory malloc keeps.
bool EnvironmentTunesMalloc();

}  // namespace horocache
