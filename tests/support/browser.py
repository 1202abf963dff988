"""A headless Chromium that opens a page and says what the page did: requests, console, dialogs, title, width.

The commands are those of the DevTools protocol, over two pipes (`--remote-debugging-pipe`): nothing but the
browser has to be installed. The browser has an empty profile.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
_ANSWER_S = 60.0
_SETTLE_S = 1.0  # in which a script would have run, and a picture would have been asked for


@dataclass
class PageSeen:
    """What a page did. `requests` are the addresses that it asked for, its own and `data:` left out."""

    title: str = ""
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    width: int = 0  # pixels; more than the window if the page has to be moved sideways
    picture: bytes = b""  # PNG of the whole page


class Browser:
    """The pipes to a browser, and the session of its one page."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._left, self._number = commands, answers, b"", 0
        self._events: list[dict[str, Any]] = []  # Any: JSON
        target = self.call("Target.createTarget", url="about:blank", session="")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True, session="")[
            "sessionId"
        ]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, width: int, height: int = 900) -> PageSeen:
        """Opens the file in a window of this size, and waits until scripts and pictures had their time."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self._events.clear()
        address = page.resolve().as_uri()
        self.call("Page.navigate", url=address)
        self._wait_for("Page.loadEventFired")
        self._listen(_SETTLE_S)
        sizes = self.call("Page.getLayoutMetrics")["cssContentSize"]
        found = PageSeen(width=int(sizes["width"]))
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        found.picture = base64.b64decode(shot["data"])
        found.title = self.call("Runtime.evaluate", expression="document.title")["result"]["value"]
        for event in self._events:
            values = event["params"]
            match event["method"]:
                case "Network.requestWillBeSent" if not values["request"]["url"].startswith("data:"):
                    found.requests += [values["request"]["url"]]
                case "Runtime.consoleAPICalled":
                    found.console += [str(values["args"])]
                case "Log.entryAdded":
                    found.console += [values["entry"]["text"]]
                case "Runtime.exceptionThrown":
                    found.console += [str(values["exceptionDetails"])]
                case "Page.javascriptDialogOpening":
                    found.dialogs += [values["message"]]
        found.requests.remove(address)
        return found

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def call(self, method: str, *, session: str | None = None, **values: object) -> dict[str, Any]:
        """The answer of the browser to a command. Dialogs that open meanwhile are closed."""
        number = self._send(method, values, self._session if session is None else session)
        end = time.monotonic() + _ANSWER_S
        while time.monotonic() < end:
            for message in self._read(end - time.monotonic()):
                if message.get("id") == number:
                    assert "error" not in message, f"{method}: {message['error']}"
                    return dict(message["result"])
        raise AssertionError(f"{method}: Chromium gave no answer in {_ANSWER_S:.0f} s")

    def _send(self, method: str, values: dict[str, object], session: str) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        message |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return self._number

    def _read(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """The messages that arrive in this time, at least one if there is one; keeps the events."""
        if not select.select([self._answers], [], [], max(timeout_s, 0))[0]:
            return
        data = os.read(self._answers, 1 << 20)
        assert data, "Chromium ended"
        *whole, self._left = (self._left + data).split(b"\0")
        for message in map(json.loads, whole):
            if "id" not in message:
                self._events.append(message)
                if message["method"] == "Page.javascriptDialogOpening":
                    self._send("Page.handleJavaScriptDialog", {"accept": True}, self._session)
            yield message

    def _wait_for(self, event: str) -> None:
        end = time.monotonic() + _ANSWER_S
        while all(each["method"] != event for each in self._events):
            assert time.monotonic() < end, f"{event}: not within {_ANSWER_S:.0f} s"
            list(self._read(end - time.monotonic()))

    def _listen(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            list(self._read(end - time.monotonic()))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Chromium, with an empty profile in this new directory. Fails the test if none is installed."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.fail(
            f"this proof needs Chromium, and PATH has none of {', '.join(_NAMES)}. Install Chromium (Debian: "
            "apt-get install chromium), or set CHROMIUM to its path"
        )
    (commands_in, commands), (answers, answers_out) = os.pipe(), os.pipe()
    # Chromium reads commands from descriptor 3, and writes answers to 4.
    start = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    process = subprocess.Popen(
        ["/bin/bash", "-c", start, "chromium", str(commands_in), str(answers_out),
         found, *_OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(commands_in, answers_out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(commands_in)
    os.close(answers_out)
    try:
        yield Browser(commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        process.kill()
        process.wait(30)
