#include "runtime/diagnostics/record_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/futex.h"
#include "base/text.h"
#include "base/thread.h"

namespace horocache::runtime {
namespace {

Status Failed() { return InvalidArgumentError(std::generic_category().message(errno)); }

Status WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed();
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

}  // namespace

Status RecordFile::ReplaceFile(const std::string& path, std::string_view bytes) {
  std::error_code ignored;  // MakeFile reports the error
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string fresh = path + ".new";
  const StatusOr<UniqueFd> file = MakeFile(fresh, 0600);
  if (!file.ok()) return file.status();
  Status status = WriteAll(file->get(), bytes);
  if (status.ok() && rename(fresh.c_str(), path.c_str()) != 0) status = Failed();
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

Status RecordFile::Replace(std::string bytes) {
  const std::string late = "the file system has not answered for " + SecondsText(patience_ns_);
  if (hanging_ != nullptr && hanging_->done.load() == 0) return InvalidArgumentError(late);
  const auto writing = std::make_shared<Writing>(path_, std::move(bytes));
  NamedThread thread;
  try {
    thread = NamedThread("hc-record", [writing, replace = replace_] {
      writing->status = replace(writing->path, writing->bytes);
      writing->done.store(1);
      FutexWake(writing->done);
    });
  } catch (const std::system_error& error) {
    return InvalidArgumentError(std::string("cannot start a thread: ") + error.what());
  }
  const int64_t deadline_ns = NowNs() + patience_ns_;
  while (writing->done.load() == 0 && NowNs() < deadline_ns) FutexWait(writing->done, 0, deadline_ns - NowNs());
  if (writing->done.load() != 0) {
    thread.Join();
    return writing->status;
  }
  hanging_ = writing;
  thread.Abandon();
  return InvalidArgumentError(late);
}

}  // namespace horocache::runtime
