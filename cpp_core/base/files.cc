#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/text.h"

namespace horocache {
namespace {

Status Failed(const std::string& what, const std::string& path, int error) {
  return InvalidArgumentError("cannot " + what + " '" + Printable(path) + "': " + std::strerror(error));
}

// Rejects paths with a NUL byte: the operating system would cut them there and use another file.
Status CheckPath(const std::string& path) {
  if (path.find('\0') == std::string::npos) return Status::Ok();
  return InvalidArgumentError("the path '" + Printable(path) + "' has a NUL byte; give one without");
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

// The kernel's name of an open file; `otherwise` if the kernel does not tell it.
std::string NameOf(const UniqueFd& open_file, const std::string& otherwise) {
  std::array<char, PATH_MAX> name;
  const std::string link = "/proc/self/fd/" + std::to_string(open_file.get());
  const ssize_t length = readlink(link.c_str(), name.data(), name.size());
  return length > 0 && name[0] == '/' ? std::string(name.data(), static_cast<size_t>(length)) : otherwise;
}

// True if `path` is a link of another user in a folder that all users may write to. The owner of the folder may have
// links there.
bool IsPlantedLink(const std::string& path) {
  struct stat link{}, folder{};
  if (lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return false;
  if (stat(FolderOf(path).c_str(), &folder) != 0) return false;
  constexpr mode_t kShared = S_ISVTX | S_IWOTH;
  return (folder.st_mode & kShared) == kShared && link.st_uid != geteuid() && link.st_uid != folder.st_uid;
}

}  // namespace

StatusOr<UniqueFd> MakeFile(const std::string& path, mode_t mode) {
  HC_RETURN_IF_ERROR(CheckPath(path));
  const int removed = unlink(path.c_str()) == 0 ? 0 : errno;
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode));
  if (file.get() >= 0) return file;
  if (errno == EEXIST && removed != 0) return Failed("remove", path, removed);
  return Failed("make", path, errno);
}

StatusOr<std::string> ResolvePath(const std::string& path) {
  HC_RETURN_IF_ERROR(CheckPath(path));
  if (IsPlantedLink(path)) return Failed("follow another user's link", path, EACCES);
  const UniqueFd there(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (there.get() >= 0) return NameOf(there, path);
  if (errno != ENOENT) return Failed("open", path, errno);
  const std::string folder = FolderOf(path);
  const UniqueFd around(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (around.get() < 0) return Failed("open the folder of", path, errno);
  const std::string base = NameOf(around, folder);
  return (base == "/" ? base : base + "/") + path.substr(path.rfind('/') + 1);
}

}  // namespace horocache
