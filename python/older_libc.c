/* Functions that Debian 12's libstdc++.a calls, but that are missing in the oldest glibc that the Python package supports. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

/* glibc has it since 2.36. std::random_device calls it. */
uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t out;
  for (size_t have = 0; have < sizeof out;) {
    const ssize_t got = getrandom((char*)&out + have, sizeof out - have, 0);
    if (got > 0) {
      have += (size_t)got;
    } else if (errno != EINTR) {
      abort(); /* like glibc, if the system has no random numbers */
    }
  }
  return out;
}
