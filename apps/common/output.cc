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
  // Writes to standard error succeed, because lost messages are not a failure.
  constexpr int kOppositeModes[] = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is `stream`.
    if (open("/dev/null", kOppositeModes[stream]) != stream) break;
  }
  // With SIGXFSZ ignored, a file size limit (ulimit -f) is a write error, like a full disk, and does not kill the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

bool output_arrives() { return std::fflush(stdout) == 0 && !std::ferror(stdout); }

int finish_output(int status) {
  if (output_arrives()) return status;
  // The errno of the write that failed may be lost, so this writes again, to fail for the same reason.
  const std::string reason =
      write(STDOUT_FILENO, "\n", 1) < 0 ? std::string(": ") + std::strerror(errno) : "";
  return wrong_use("standard output: cannot be written" + reason);
}

}  // namespace sluice::apps
