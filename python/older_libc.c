/* What Debian 12's libstdc++.a wants of a C library newer than the oldest one that the Python package runs on. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

/* glibc 2.36 has it; std::random_device calls it. */
uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t out;
  for (size_t have = 0; have < sizeof out;) {
    const ssize_t got = getrandom((char*)&out + have, sizeof out - have, 0);
    if (got > 0) {
      have += (size_t)got;
    } else if (errno != EINTR) {
      abort(); /* as glibc's own does where the system has no random numbers */
    }
  }
  return out;
}
