#include "observe/trace_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/files.h"
#include "base/text.h"

namespace horocache::observe {
namespace {

constexpr std::string_view kOpening = "[";
constexpr std::string_view kClosing = "\n]\n";
constexpr std::string_view kComma = ",\n";

// The text between the elements of a copy that ends at `end` and further elements. The first element has no comma
// before it.
std::string_view Separator(int64_t end) {
  return end == static_cast<int64_t>(kOpening.size()) ? kComma.substr(1) : kComma;
}

}  // namespace

StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path) {
  // Resolved, because two directory entries are exchanged: the path must name the file itself, not a link to it.
  StatusOr<std::string> target = ResolvePath(path);
  if (!target.ok()) return target.status();
  std::unique_ptr<TraceFile> file(new TraceFile(std::move(*target)));
  HC_RETURN_IF_ERROR(file->Open());
  return file;
}

Status TraceFile::Failed(const char* what) const {
  return InvalidArgumentError(std::string("cannot ") + what + " '" + Printable(path_) + "': " + std::strerror(errno));
}

// True if the file at the spare path is the second copy of a trace whose process was killed: an empty file, or an array
// with a line feed and no other white space before its first element.
bool TraceFile::SpareIsOurs() const {
  const UniqueFd there(open(spare_path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat about{};
  if (there.get() < 0 || fstat(there.get(), &about) != 0 || !S_ISREG(about.st_mode)) return false;
  std::array<char, 3> begin{};
  const ssize_t length = pread(there.get(), begin.data(), begin.size(), 0);
  return length == 0 || (length == 3 && begin[0] == kOpening[0] && begin[1] == '\n' && begin[2] > ' ');
}

Status TraceFile::CheckSpare() const {
  struct stat about{};
  if (lstat(spare_path().c_str(), &about) != 0 || SpareIsOurs()) return Status::Ok();
  return InvalidArgumentError("'" + Printable(spare_path()) + "' is there, and no part of a trace, which '" +
                              Printable(path_) + "' would need it for. Move it away, or give the trace another path");
}

Status TraceFile::Open() {
  struct stat about{};
  if (lstat(path_.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    if (S_ISFIFO(about.st_mode)) return InvalidArgumentError("'" + Printable(path_) + "' is a FIFO; name a file");
    UniqueFd device(open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY));
    if (device.get() < 0 || fstat(device.get(), &about) != 0) return Failed("open");
    if (S_ISREG(about.st_mode)) return InvalidArgumentError("'" + Printable(path_) + "' became another file meanwhile");
    copies_[0].fd = std::move(device);
    return Write(&copies_[0], std::array{kOpening});
  }
  HC_RETURN_IF_ERROR(CheckSpare());
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
  StatusOr<UniqueFd> spare = MakeFile(spare_path(), 0644);
  if (!spare.ok()) return spare.status();
  copy->fd = std::move(*spare);
  const Status written = Write(copy, std::array{kOpening});
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
  exchanges_ = false;  // the spare file belongs to the parent, so the destructor must not remove it
}

Status TraceFile::Write(Copy* copy, std::span<const std::string_view> pieces) {
  std::array<iovec, 6> parts;  // NOLINT: as many as are used are filled
  size_t count = 0;
  int64_t bytes = 0;
  for (const std::string_view piece : pieces) {
    parts.at(count++) = {const_cast<char*>(piece.data()), piece.size()};
    bytes += static_cast<int64_t>(piece.size());
  }
  parts.at(count++) = {const_cast<char*>(kClosing.data()), kClosing.size()};
  Status written = WriteAll(*copy, std::span(parts).first(count));
  if (written.ok()) copy->end += bytes;
  return written;
}

Status TraceFile::WriteAll(const Copy& copy, std::span<iovec> parts) const {
  if (!copy.fd.intact())
    return InvalidArgumentError("the program has closed the descriptor of '" + Printable(path_) + "'");
  for (int64_t done = 0; !parts.empty();) {
    ssize_t wrote = pwritev(copy.fd.get(), parts.data(), static_cast<int>(parts.size()), copy.end + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      Status failed = Failed("write");
      // Takes back what was written, so that the file stays whole. An error here is ignored: nothing more can be done.
      if (done > 0 && ftruncate(copy.fd.get(), copy.end) == 0)
        static_cast<void>(!pwrite(copy.fd.get(), kClosing.data(), kClosing.size(), copy.end));
      return failed;
    }
    done += wrote;
    for (; !parts.empty() && wrote >= static_cast<ssize_t>(parts[0].iov_len); parts = parts.subspan(1))
      wrote -= static_cast<ssize_t>(parts[0].iov_len);
    if (wrote > 0)
      parts[0] = {static_cast<char*>(parts[0].iov_base) + wrote, parts[0].iov_len - static_cast<size_t>(wrote)};
  }
  return Status::Ok();
}

Status TraceFile::AppendToSpare(std::string_view elements) {
  Copy* const spare = &copies_[1];
  if (missing_.empty()) return Write(spare, std::array{Separator(spare->end), elements});
  return Write(spare, std::array{Separator(spare->end), std::string_view(missing_), kComma, elements});
}

Status TraceFile::Append(std::string* elements) {
  if (!exchanges_) {
    HC_RETURN_IF_ERROR(Write(&copies_[0], std::array{Separator(copies_[0].end), std::string_view(*elements)}));
    elements->clear();
    return Status::Ok();
  }
  HC_RETURN_IF_ERROR(AppendToSpare(*elements));
  if (!Exchange()) return Failed("exchange the copies of");
  std::swap(copies_[0], copies_[1]);
  std::swap(missing_, *elements);
  return Status::Ok();
}

}  // namespace horocache::observe
