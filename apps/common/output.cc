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
                                    O_RDWR};  // messages alone are dropped without an error
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free descriptor is this one.
    if (open("/dev/null", kOppositeModes[stream]) != stream) break;
  }
  // A file that may not grow (ulimit -f) is an error of the write, as a full disk is, and no reason to end the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

bool output_arrives() { return std::fflush(stdout) == 0 && !std::ferror(stdout); }

int finish_output(int status) {
  if (output_arrives()) return status;
  // The write that failed may be long past, and its reason with it: the next one fails for the same.
  const std::string reason =
      write(STDOUT_FILENO, "\n", 1) < 0 ? std::string(": ") + std::strerror(errno) : "";
  return wrong_use("standard output: cannot be written" + reason);
}

}  // namespace sluice::apps
