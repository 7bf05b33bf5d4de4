// Errors of a process that has reached its limit of open files.
#pragma once

#include <string>

#include "base/status.h"

namespace horocache::net {

bool OutOfFiles(int error);

// The system's text for `error`. If this process has too many open files, also its limit and how to raise it.
std::string ErrorText(int error);

// The error of a start-up of `ranks` ranks: the limit, and how many files the start-up needs.
Status TooManyFiles(int ranks);

}  // namespace horocache::net
