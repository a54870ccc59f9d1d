"""A page in headless Chromium, driven by the DevTools protocol over a pipe: no package needed."""

import json
import os
from pathlib import Path
import shutil
import subprocess
import time

BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe", "--window-size=1400,1000",
)  # fmt: skip
_TROUBLE = ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening")


class Page:
    """One page; `trouble` is what went wrong in it: exceptions, errors in its log, dialogs."""

    def __init__(self, profile: Path):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        start = f'exec "$@" 3<&{to_browser} 4>&{from_browser} 2>/dev/null'
        command = ["bash", "-c", start, "bash", BINARY, *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(command, pass_fds=(to_browser, from_browser))
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._left, self.trouble = 0, b"", []
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, file: Path, hash: str = "") -> None:
        """Loads a file anew; what went wrong before is forgotten."""
        self._call("Page.navigate", url="about:blank")
        self.trouble = []
        self._call("Page.navigate", url=f"file://{file.resolve()}{hash}")
        deadline = time.monotonic() + 30
        while self.evaluate("location.protocol + document.readyState") != "file:complete":
            assert time.monotonic() < deadline, "the page was not loaded"
            time.sleep(0.02)

    def evaluate(self, expression: str):
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def close(self) -> None:
        """Ends the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _call(self, method: str, **params) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("method") in _TROUBLE:
                self.trouble.append(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self._left:
            chunk = os.read(self._in, 1 << 16)
            assert chunk, "Chromium has ended"
            self._left += chunk
        message, self._left = self._left.split(b"\0", 1)
        return json.loads(message)
