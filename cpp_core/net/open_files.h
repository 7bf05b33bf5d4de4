// Errors of a process that may not open more files.
#pragma once

#include <string>

#include "base/status.h"

namespace horocache::net {

bool OutOfFiles(int error);

// What the system says of `error`; with the limit and what to do where the process has too many files open.
std::string ErrorText(int error);

// For start-up of so many ranks: says also what it needs.
Status TooManyFiles(int ranks);

}  // namespace horocache::net
