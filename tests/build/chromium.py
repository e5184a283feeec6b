# SPDX-License-Identifier: BSD-3-Clause
# A headless Chromium for tests: pages, mouse, touch, screenshots. It is controlled through the DevTools protocol over a
# pair of pipes: JSON messages, each terminated by a zero byte.

from __future__ import annotations

import base64
import fcntl
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60  # seconds; long enough for a loaded machine


def find() -> str:
    """Returns the path of Chromium; skips the test if it is not installed."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("Chromium is not installed (apt install chromium)")


class Chromium:
    """One page. A context manager."""

    def __init__(self, width: int = 900, height: int = 640) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()  # (read, write) pairs: to the browser, and from it
        command = [find(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]
        command += [
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--touch-events=enabled",
        ]
        command += [f"--user-data-dir={self._folder.name}", "about:blank"]
        # it reads from descriptor 3 and writes to 4, which may be in use in this process
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (ours[0], theirs[1])]
        self._process = subprocess.Popen(
            command,
            pass_fds=(3, 4),
            preexec_fn=lambda: (os.dup2(ends[0], 3), os.dup2(ends[1], 4)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (ours[0], theirs[1], *ends):
            os.close(end)
        self._to, self._from = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb")
        self._last, self._session = 0, None
        self.errors: list[str] = []  # errors of the page's scripts
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._to.close()
        self._from.close()
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command of the protocol and returns its result."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            text += byte
        message = json.loads(text)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"]["exception"].get("description", ""))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Sets the size of the window in pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str, ready: str) -> None:
        """Opens a page and waits until the expression is true."""
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && ({ready})")

    def wait(self, ready: str) -> None:
        """Waits until the expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.value(ready):
            assert time.monotonic() < end, (
                f"it never is so that {ready}: {self.value('document.body.innerText')} {self.errors}"
            )
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page; awaits promises."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def drag(self, points: list[tuple[float, float]], *, touch: bool = False) -> None:
        """Drags along the points (in page pixels) with the left button or one finger."""
        if touch:
            for i, (x, y) in enumerate(points):
                kind = "touchMove" if i else "touchStart"
                self.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
            self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            return
        for i, (x, y) in enumerate([*points, points[-1]]):
            kind = "mousePressed" if i == 0 else "mouseReleased" if i == len(points) else "mouseMoved"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def picture(self) -> bytes:
        """Returns a screenshot of the window as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


class Served:
    """Serves a folder on a local port; the context manager returns the URL."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        folder = self._folder

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
