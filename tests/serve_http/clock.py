"""How long /health takes while a test does something else: asked by a process of its own, which the test's threads do not hold up."""
import http.client
import json
import subprocess
import sys
import threading
import time


class HealthClock:
    """with HealthClock(server) as clock: ...; then clock.seconds has the time of each, and clock.worst the longest."""

    def __init__(self, server):
        self.process = subprocess.Popen([sys.executable, "-B", __file__, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        self.process.stdout.readline()  # it has begun
        return self

    def __exit__(self, *fault):
        out, _ = self.process.communicate()
        said = json.loads(out)
        self.seconds, self.worst = said["seconds"], max(said["seconds"])
        if said["fault"] and fault[0] is None:
            raise AssertionError("/health: " + said["fault"])


def main(port):
    ended, seconds, fault = threading.Event(), [], None
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("begun", flush=True)
    while fault is None and (not ended.is_set() or not seconds):
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
        time.sleep(0.01)
    print(json.dumps({"seconds": seconds, "fault": fault}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
