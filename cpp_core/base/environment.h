// The only place in C++ that reads or writes the process environment (lint enforces it).
#pragma once

#include <map>
#include <string>

namespace horocache {

// The environment variables that concern a job: HOROCACHE_ and HOROVOD_ names, the variables by which launchers tell a
// process its rank (see net/bootstrap/launcher_environment.h), and TMPDIR.
std::map<std::string, std::string> ReadEnvironment();

// True if an environment variable of glibc sets how much free memory malloc keeps.
bool EnvironmentTunesMalloc();

// Sets a variable that libraries loaded later read, unless it is set. Only for the start of a job: other threads must
// not read the environment at the same time.
void SetUnlessSet(const char* name, const char* value);

}  // namespace horocache
