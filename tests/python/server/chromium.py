"""A headless Chromium, driven through the DevTools protocol over a pipe: messages are JSON, each terminated by a zero byte."""
from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

WATCHDOG = 8  # seconds after which a wait counts as a hang; nothing here measures time
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "ArrowUp": (38, "")}


class Chromium:
    def __init__(self):
        found = shutil.which("chromium")
        assert found, "wanted chromium, found none: ./dev test-python installs Debian's"
        self.home = tempfile.TemporaryDirectory()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # Chromium reads descriptor 3 and writes descriptor 4, whatever their numbers are here.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]

        def place():
            for fd, number in zip(high, (3, 4)):
                os.dup2(fd, number)

        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 "--no-first-run", "--disable-background-networking", f"--user-data-dir={self.home.name}", "about:blank"]
        self.process = subprocess.Popen([found, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        preexec_fn=place, pass_fds=(3, 4))
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        self.input, self.output = ours_in, ours_out
        self.rest, self.messages, self.last_id = b"", [], 0
        self.pages = {}  # by session id

    def read(self, end):
        """Reads the next message: replies go to `messages`, events go to their page."""
        while b"\0" not in self.rest:
            ready = select.select([self.input], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"Chromium was silent for {WATCHDOG} s"
            chunk = os.read(self.input, 1 << 16)
            assert chunk, f"Chromium ended with {self.process.wait()}"
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(message)
        if "id" in message:
            self.messages.append(message)
        elif page := self.pages.get(message.get("sessionId")):
            page.events.append((message["method"], message["params"]))

    def call(self, method, session=None, **params):
        self.last_id += 1
        sent = {"id": self.last_id, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.output, json.dumps(sent).encode() + b"\0")
        end = time.monotonic() + WATCHDOG
        while not any(m["id"] == self.last_id for m in self.messages):
            self.read(end)
        answer, self.messages = self.messages[-1], []
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url, **how):
        return Page(self, url, **how)

    def close(self):
        os.close(self.output)
        os.close(self.input)
        self.process.terminate()
        self.process.wait(WATCHDOG)
        self.home.cleanup()


class Page:
    """A window with its own storage. `scheme` is the preferred color scheme, light or dark."""

    def __init__(self, browser, url, *, width=1000, height=720, scheme="light"):
        self.browser, self.events = browser, []
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.prefer("prefers-color-scheme", scheme)
        self.go(url)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def prefer(self, name, value):
        self.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": value}])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self):
        loads = len(self.of("Page.loadEventFired"))
        self.call("Page.reload")
        end = time.monotonic() + WATCHDOG
        while len([name for name, _ in self.events if name == "Page.loadEventFired"]) == loads:
            self.browser.read(end)

    def js(self, expression, refused=False):
        """The value of an expression, as JSON. `refused`: the page's policy must reject it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert ("exceptionDetails" in found) == refused, found
        return found["result"].get("value")

    def wait_for(self, condition):
        end = time.monotonic() + WATCHDOG
        while not self.js(condition):
            assert time.monotonic() < end, f"waited {WATCHDOG} s for {condition}; the page says: {self.text('body')}"
            time.sleep(0.01)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText")

    def click(self, selector):
        box = self.js(f"(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        code, text = KEYS[key]
        same = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def screenshot(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def of(self, method):
        """The parameters of all events of one kind so far."""
        self.js("0")  # a round trip, so that all earlier events have arrived
        return [params for name, params in self.events if name == method]

    def requests(self):
        return [r["request"]["url"] for r in self.of("Network.requestWillBeSent")]

    def faults(self):
        """Messages that a console would show as errors."""
        thrown = [e["exceptionDetails"] for e in self.of("Runtime.exceptionThrown")]
        said = [e for e in self.of("Runtime.consoleAPICalled") if e["type"] in ("error", "warning", "assert")]
        return thrown + said + [e["entry"]["text"] for e in self.of("Log.entryAdded") if e["entry"]["level"] == "error"]

    def close(self):
        del self.browser.pages[self.session]
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
