#include "observe/trace_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/text.h"

namespace horocache::observe {
namespace {

constexpr std::string_view kOpening = "[";
constexpr std::string_view kClosing = "\n]\n";

}  // namespace

StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path) {
  // Names are exchanged, so the name must be the file's own, not a link's.
  std::error_code unknown;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, unknown);
  std::unique_ptr<TraceFile> file(new TraceFile(unknown ? path : target.string()));
  HC_RETURN_IF_ERROR(file->Open());
  return file;
}

Status TraceFile::Failed(const char* what) const {
  return InvalidArgumentError(std::string("cannot ") + what + " '" + Printable(path_) + "': " + std::strerror(errno));
}

Status TraceFile::Open() {
  struct stat about{};
  if (stat(path_.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    copies_[0].fd = UniqueFd(open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    if (copies_[0].fd.get() < 0) return Failed("open");
    std::string opening(kOpening);
    return Write(&copies_[0], &opening);
  }
  HC_RETURN_IF_ERROR(MakeSpare(&copies_[0]));
  if (rename(spare_path().c_str(), path_.c_str()) != 0) {
    const Status failed = Failed("make");
    unlink(spare_path().c_str());
    return failed;
  }
  HC_RETURN_IF_ERROR(MakeSpare(&copies_[1]));
  exchanges_ = Exchange();
  if (exchanges_) {
    std::swap(copies_[0], copies_[1]);
  } else {
    unlink(spare_path().c_str());
    copies_[1].fd.Close();
  }
  return Status::Ok();
}

Status TraceFile::MakeSpare(Copy* copy) {
  unlink(spare_path().c_str());  // of a process that was killed
  copy->fd = UniqueFd(open(spare_path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (copy->fd.get() < 0) return Failed("make");
  std::string opening(kOpening);
  const Status written = Write(copy, &opening);
  if (!written.ok()) unlink(spare_path().c_str());
  return written;
}

bool TraceFile::Exchange() const {
  return renameat2(AT_FDCWD, spare_path().c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0;
}

TraceFile::~TraceFile() {
  if (exchanges_) unlink(spare_path().c_str());
}

void TraceFile::CloseInChild() {
  for (Copy& copy : copies_) copy.fd.Close();
  exchanges_ = false;  // the other copy is the parent's
}

Status TraceFile::Write(Copy* copy, std::string* text) {
  const size_t size = text->size();
  *text += kClosing;
  Status written = WriteAll(*copy, *text);
  text->resize(size);
  if (written.ok()) copy->end += static_cast<int64_t>(size);
  return written;
}

Status TraceFile::WriteAll(const Copy& copy, std::string_view bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote =
        pwrite(copy.fd.get(), bytes.data() + done, bytes.size() - done, copy.end + static_cast<int64_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      Status failed = Failed("write");
      // What was written is taken back, so that the file stays whole; if even that fails, nothing more can be done.
      if (done > 0 && ftruncate(copy.fd.get(), copy.end) == 0)
        static_cast<void>(!pwrite(copy.fd.get(), kClosing.data(), kClosing.size(), copy.end));
      return failed;
    }
    done += static_cast<size_t>(wrote);
  }
  return Status::Ok();
}

Status TraceFile::AppendToSpare() {
  const size_t lacked = missing_.size();
  missing_ += news_;
  Status written = Write(&copies_[1], &missing_);
  missing_.resize(lacked);
  return written;
}

Status TraceFile::Append(std::string_view elements) {
  news_ = empty_ ? "\n" : ",\n";
  news_ += elements;
  if (!exchanges_) {
    HC_RETURN_IF_ERROR(Write(&copies_[0], &news_));
  } else {
    HC_RETURN_IF_ERROR(AppendToSpare());
    if (!Exchange()) return Failed("exchange the copies of");
    std::swap(copies_[0], copies_[1]);
    std::swap(missing_, news_);
  }
  empty_ = false;
  return Status::Ok();
}

}  // namespace horocache::observe
