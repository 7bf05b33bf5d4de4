#include "net/bootstrap/contenders.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"

namespace horocache::net {
namespace {

constexpr size_t kMaxFile = 1 << 20;  // bytes read of one file in /proc
constexpr size_t kMaxCommand = 120;   // bytes of a command line in a message
constexpr int kMaxDepth = 64;         // parents that a search follows at most

std::string ReadProc(int pid, const char* name) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const std::unique_ptr<FILE, decltype(&fclose)> file(fopen(path.c_str(), "re"), &fclose);
  std::string text;
  std::array<char, 4096> buffer;
  while (file != nullptr && text.size() < kMaxFile) {
    const size_t got = fread(buffer.data(), 1, buffer.size(), file.get());
    if (got == 0) break;
    text.append(buffer.data(), got);
  }
  return text;
}

// The parent's pid in /proc/<pid>/stat, "pid (name) state parent ..."; 0 if unknown. The name may contain any
// character.
int ParentOf(int pid) {
  const std::string stat = ReadProc(pid, "stat");
  const size_t name_end = stat.rfind(')');
  int parent = 0;
  char state = 0;
  return name_end != std::string::npos && sscanf(stat.c_str() + name_end + 1, " %c %d", &state, &parent) == 2 ? parent
                                                                                                              : 0;
}

std::vector<std::string> Texts(const std::string& zeros) {
  std::vector<std::string> texts = Split(zeros, '\0');
  while (!texts.empty() && texts.back().empty()) texts.pop_back();
  return texts;
}

// The rank that the process's environment claims; none if the environment lacks a line of `claim`.
std::optional<int> RankClaimed(int pid, const std::vector<std::string>& claim) {
  const std::vector<std::string> environment = Texts(ReadProc(pid, "environ"));
  const auto has = [&](const std::string& line) { return std::ranges::find(environment, line) != environment.end(); };
  if (!std::ranges::all_of(claim, has)) return std::nullopt;
  for (const std::string& line : environment) {
    int64_t rank = 0;
    if (line.starts_with("RANK=") && ParseNumber(line.substr(5), &rank) && rank >= 0) return static_cast<int>(rank);
  }
  return std::nullopt;
}

// The program that an interpreter runs: the first argument that is not an option, or -m or -c with the argument after
// it. Without arguments, the command itself.
std::string ProgramOf(const std::vector<std::string>& command) {
  for (size_t i = 1; i < command.size(); ++i) {
    const bool follows = (command[i] == "-m" || command[i] == "-c") && i + 1 < command.size();
    if (follows) return command[i] + command[i + 1];
    if (!command[i].starts_with("-")) return command[i];
  }
  return command.empty() ? "" : command[0];
}

// Makes a relative path absolute, from the process's working directory, if the file exists there.
std::string Resolved(int pid, const std::string& program) {
  if (program.empty() || program[0] == '/' || program[0] == '-') return program;
  std::array<char, 4096> folder = {};
  const std::string link = "/proc/" + std::to_string(pid) + "/cwd";
  const ssize_t size = readlink(link.c_str(), folder.data(), folder.size() - 1);
  if (size <= 0) return program;
  std::string path = std::string(folder.data(), static_cast<size_t>(size)) + "/" + program;
  struct stat found{};
  return stat(path.c_str(), &found) == 0 ? path : program;
}

// Replaces numbers by '#', because they may differ from rank to rank.
std::string WithoutNumbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    const bool in_number = !out.empty() && out.back() == '#';
    if (digit && !in_number) out += '#';
    if (!digit && !(c == '.' && in_number)) out += c;
  }
  return out;
}

std::string Shown(const std::vector<std::string>& command) {
  const std::string text = Join(command, " ");
  return "'" + Printable(text.substr(0, kMaxCommand)) + (text.size() > kMaxCommand ? "...'" : "'");
}

// True if the process is in a job: it has mapped the memory of an Arena.
bool IsInJob(int pid) { return ReadProc(pid, "maps").find("/memfd:horocache ") != std::string::npos; }

std::vector<int> ProcessesOfUser() {
  std::vector<int> pids;
  DIR* const directory = opendir("/proc");
  while (const dirent* entry = directory != nullptr ? readdir(directory) : nullptr) {
    int64_t pid = 0;
    struct stat found{};
    if (!ParseNumber(entry->d_name, &pid) || stat(("/proc/" + std::string(entry->d_name)).c_str(), &found) != 0)
      continue;
    if (found.st_uid == geteuid()) pids.push_back(static_cast<int>(pid));
  }
  if (directory != nullptr) closedir(directory);
  return pids;
}

bool DescendsFrom(int pid, const std::set<int>& others) {
  int ancestor = ParentOf(pid);
  for (int depth = 0; ancestor > 1 && depth < kMaxDepth; ++depth) {
    if (others.contains(ancestor)) return true;
    ancestor = ParentOf(ancestor);
  }
  return false;
}

// The first ancestor that is not a wrapper of the rank. A wrapper claims the same rank.
int StarterOf(int pid, const std::vector<std::string>& claim) {
  const std::optional<int> rank = RankClaimed(pid, claim);
  int starter = ParentOf(pid);
  for (int depth = 0; rank && starter > 1 && depth < kMaxDepth && RankClaimed(starter, claim) == rank; ++depth) {
    starter = ParentOf(starter);
  }
  return starter;
}

}  // namespace

std::string PidNamespace() {
  std::array<char, 64> name = {};
  const ssize_t size = readlink("/proc/self/ns/pid", name.data(), name.size() - 1);
  return size > 0 ? std::string(name.data(), static_cast<size_t>(size)) : "";
}

std::vector<Contender> FindContenders(const std::vector<std::string>& claim, const std::vector<int>& members) {
  std::set<std::string> programs;
  for (const int pid : members) programs.insert(Resolved(pid, ProgramOf(Texts(ReadProc(pid, "cmdline")))));
  std::vector<Contender> found;
  std::set<int> known(members.begin(), members.end());
  for (const int pid : ProcessesOfUser()) {
    if (std::ranges::find(members, pid) != members.end()) continue;
    const std::vector<std::string> command = Texts(ReadProc(pid, "cmdline"));
    if (command.empty() || !programs.contains(Resolved(pid, ProgramOf(command)))) continue;
    const std::optional<int> rank = RankClaimed(pid, claim);
    if (!rank) continue;
    known.insert(pid);
    if (!IsInJob(pid)) found.push_back({pid, *rank, Shown(command)});
  }
  // A rank's children inherit its environment and do not count.
  std::erase_if(found, [&](const Contender& one) { return DescendsFrom(one.pid, known); });
  return found;
}

CommonOrigin FindKinship(const std::vector<std::string>& claim, const std::vector<int>& members) {
  CommonOrigin kinship;
  std::set<int> starters;
  std::set<std::string> commands;
  for (const int pid : members) {
    std::vector<std::string> command = Texts(ReadProc(pid, "cmdline"));
    kinship.commands.push_back(command.empty() ? "" : Shown(command));
    const std::string program = ProgramOf(command);
    std::ranges::replace(command, program, Resolved(pid, program));
    commands.insert(WithoutNumbers(Join(command, std::string(1, '\0'))));
    const int starter = StarterOf(pid, claim);
    const bool is_rank = std::ranges::find(members, starter) != members.end();  // a rank that started the others
    if (!is_rank) starters.insert(starter);
  }
  // Process 1 of the machine adopts processes whose starter has ended, so it is not a starter. Process 1 of a container
  // is often the script that starts the ranks.
  const bool in_container = PidNamespace() != "pid:[4026531836]";
  kinship.one_starter = starters.size() == 1 && *starters.begin() >= (in_container ? 1 : 2);
  kinship.same_command = commands.size() == 1;
  return kinship;
}

}  // namespace horocache::net
