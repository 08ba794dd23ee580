#include "harness/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

extern char** environ;

namespace sluice::test {
namespace {

constexpr int kNarrowBytes = 4096;

// Opens both ends, the reading end first; false on failure.
bool open_ends(Process::Out kind, int ends[2]) {
  if (kind != Process::Out::kTerminal) {
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    return kind == Process::Out::kPipe || fcntl(ends[0], F_SETPIPE_SZ, kNarrowBytes) == kNarrowBytes;
  }
  if (openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0) return false;
  return fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(ends[1], F_SETFD, FD_CLOEXEC) == 0;
}

}  // namespace

Process::Process(const std::vector<std::string>& words, Out kind) {
  int out[2], err[2];
  if (!open_ends(kind, out)) return;
  if (!open_ends(Out::kPipe, err)) {
    close(out[0]);
    close(out[1]);
    return;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (posix_spawnp(&child_, argv[0], &actions, nullptr, argv.data(), environ) != 0) child_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (child_ >= 0) {
    send(SIGKILL);
    finish();
  }
  for (int end : {out_, err_})
    if (end >= 0) close(end);
}

// Reads from both pipes, so that neither fills up and blocks the child.
bool Process::read_some() {
  pollfd ends[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if ((out_ < 0 && err_ < 0) || poll(ends, 2, -1) < 0) return false;
  const auto take = [&](const pollfd& end, int* mine, std::string* text) {
    if (*mine < 0 || end.revents == 0) return;
    char buffer[4096];
    const ssize_t got = read(*mine, buffer, sizeof buffer);
    if (got > 0) return void(text->append(buffer, static_cast<size_t>(got)));
    close(*mine);
    *mine = -1;
  };
  take(ends[0], &out_, &result_.out);
  take(ends[1], &err_, &result_.err);
  return true;
}

bool Process::wait_for(const std::string& text, size_t bytes) {
  while (text.size() < bytes)
    if (!read_some()) return false;
  return true;
}

bool Process::wait_until_full() const {
  for (int tries = 0; tries < 6000; ++tries) {
    int bytes = 0;
    siginfo_t ended{};
    if (ioctl(out_, FIONREAD, &bytes) != 0) return false;
    if (bytes == kNarrowBytes) return true;
    if (waitid(P_PID, static_cast<id_t>(child_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid)
      return false;
    usleep(10000);
  }
  return false;
}

void Process::send(int signal) const {
  if (child_ >= 0) kill(child_, signal);
}

Outcome Process::finish() {
  while (read_some()) continue;
  int status = 0;
  if (child_ >= 0 && waitpid(child_, &status, 0) == child_) {
    if (WIFEXITED(status)) result_.status = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  }
  child_ = -1;
  return std::move(result_);
}

Outcome run_process(const std::vector<std::string>& words) { return Process(words).finish(); }

}  // namespace sluice::test
