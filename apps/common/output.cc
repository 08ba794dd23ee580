#include "apps/common/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "apps/common/commands.h"

namespace sluice::apps {

void open_standard_streams() {
  constexpr int kOppositeModes[] = {O_WRONLY, O_RDONLY,
                                    O_RDWR};  // losing messages on standard error is not a failure
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is this one.
    if (open("/dev/null", kOppositeModes[stream]) != stream) break;
  }
  // With SIGXFSZ ignored, a file size limit (ulimit -f) is a write error, like a full disk, and does not kill the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

bool output_arrives() { return std::fflush(stdout) == 0 && !std::ferror(stdout); }

int finish_output(int status) {
  if (output_arrives()) return status;
  // The write may have failed long ago and its errno may be lost, so this write fails again for the same reason.
  const std::string reason =
      write(STDOUT_FILENO, "\n", 1) < 0 ? std::string(": ") + std::strerror(errno) : "";
  return wrong_use("standard output: cannot be written" + reason);
}

}  // namespace sluice::apps
