"""Measures the latency of /health while a test does something else, from a process of its own that the test's threads cannot delay."""
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time

from server import is_sanitized

OWN_MAX = 0.1  # seconds for which the server itself may hold up /health


class HealthClock:
    """with HealthClock(server) as clock: ...; then clock.seconds has all times and clock.worst the longest. clock.blocked leaves out the times
    during which the system ran something else: the server's loop, the measuring thread, or another thread of the server (whose locks the loop
    may have waited for) was ready to run but did not run. So it measures the server alone, even on a busy machine; on an idle one it is the
    time that a client sees. clock.max_blocked is the longest of these times. A time above OWN_MAX does not count if the loop waited for a
    processor longer than it ran. Meanwhile the work of many clients arrives, and the loop does all of it before it answers."""

    def __init__(self, server):
        self.process = subprocess.Popen([sys.executable, "-B", __file__, str(server.port), str(server.process.pid)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        self.process.stdout.readline()  # it has started
        return self

    def __exit__(self, *fault):
        out, _ = self.process.communicate()
        said = json.loads(out)
        self.seconds, self.worst = said["seconds"], max(said["seconds"])
        self.blocked, self.max_blocked = said["blocked"], max(said["blocked"], default=0)
        if said["fault"] and fault[0] is None:
            raise AssertionError("/health: " + said["fault"])

    def check(self, test):
        if is_sanitized():
            return
        test.assertLess(self.max_blocked, OWN_MAX, self.summary())
        if not self.blocked:
            test.skipTest(f"the server hardly ran beside other programs: {self.summary()}")

    def summary(self):
        ordered = sorted(self.seconds)
        p50, p99 = (1e3 * ordered[len(ordered) * share // 100] for share in (50, 99))
        return (f"{len(ordered)} of /health: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {1e3 * ordered[-1]:.1f} ms, "
                f"of which the server's own at most {1e3 * self.max_blocked:.1f} ms; {len(self.seconds) - len(self.blocked)} do not count")


def times_of(path):
    """Seconds in which a thread ran, and in which it was ready to run but did not run."""
    try:
        with open(path) as f:
            ran, starved = f.read().split()[:2]
            return int(ran) / 1e9, int(starved) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0  # the system does not count this time


def own_time(seconds, ran, starved, others):
    """What the server itself took of `seconds`, where its loop `ran` and was `starved`, and other threads were starved for `others`. None: too
    much, but the loop waited for a processor so long that the work of others piled up."""
    own = max(seconds - starved - others, 0)
    return None if own > OWN_MAX and starved > max(ran, OWN_MAX) else own


def main(port, pid):
    ended, seconds, blocked, fault = threading.Event(), [], [], None
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    # The loop is the server's first thread.
    tasks = f"/proc/{pid}/task"

    def times():
        """Of the loop, the measuring thread and the other threads of the server."""
        others = {}
        with contextlib.suppress(OSError):
            others = {task: times_of(f"{tasks}/{task}/schedstat")[1] for task in os.listdir(tasks) if task != str(pid)}
        return times_of(f"{tasks}/{pid}/schedstat"), times_of("/proc/thread-self/schedstat")[1], others

    def own(seconds, before, after):
        (ran, starved), others = (b - a for a, b in zip(before[0], after[0])), [s - before[2].get(task, 0) for task, s in after[2].items()]
        return own_time(seconds, ran, starved, after[1] - before[1] + max(others, default=0))

    print("begun", flush=True)
    while fault is None and (not ended.is_set() or not seconds):
        before = times()
        start = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("GET", "/health")
            status = connection.getresponse().status
            connection.close()
            fault = None if status == 200 else f"status {status}"
        except (OSError, http.client.HTTPException) as error:
            fault = repr(error)
        seconds.append(time.monotonic() - start)
        blocked.append(own(seconds[-1], before, times()))
        time.sleep(0.01)
    print(json.dumps({"seconds": seconds, "blocked": [b for b in blocked if b is not None], "fault": fault}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
