"""A headless Chromium for tests of pages, spoken to over its DevTools protocol; no driver and no library is needed.

with chromium() as address:
    async with page(address) as tab:
        await tab.open("http://127.0.0.1:8000/ui")
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE_S = 30
_KEYS = {"Enter": 13, " ": 32, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35}


def find_chromium() -> str | None:
    """The program, where one is installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def chromium(program: str) -> Iterator[str]:
    """Run it with a profile of its own; gives the address of its DevTools."""
    with tempfile.TemporaryDirectory(prefix="anabranch-chromium-", ignore_cleanup_errors=True) as profile:
        command = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield _address(process, Path(profile) / "DevToolsActivePort")
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], file: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "chromium ended at once"
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise AssertionError("chromium does not say where it listens")


class Tab:
    """A page in a browser context of its own: storage and cookies are its own.

    Attributes:
        problems: what went wrong in it: exceptions, errors on the console, what its security policy kept out.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None
        self.problems: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        message: dict[str, Any] = {"id": next(self._ids), "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        reply = self._replies[message["id"]] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        return await asyncio.wait_for(reply, PATIENCE_S)

    async def open(self, url: str) -> None:
        """Go to a page."""
        await self.call("Page.navigate", url=url)

    async def js(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        reply = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    async def until(self, expression: str, within: float = PATIENCE_S) -> Any:
        """Wait until an expression is true, and give its value."""
        deadline = time.monotonic() + within
        while not (value := await self.js(expression)):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            await asyncio.sleep(0.05)
        return value

    async def text(self, selector: str) -> str:
        """The visible text of an element."""
        found: str = await self.js(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    async def count(self, selector: str) -> int:
        """How many elements there are."""
        found: int = await self.js(f"document.querySelectorAll({json.dumps(selector)}).length")
        return found

    async def click(self, selector: str) -> None:
        """Click in the middle of an element, as a mouse does."""
        x, y = await self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def type(self, text: str) -> None:
        """Write where the focus is."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press and release a key."""
        named = {"key": key, "windowsVirtualKeyCode": _KEYS[key], **({"text": "\r"} if key == "Enter" else {})}
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, **named)

    async def size(self, width: int, height: int) -> None:
        """Make the window so many pixels large."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def prefer(self, scheme: str) -> None:
        """Prefer `light` or `dark`."""
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    async def screenshot(self) -> bytes:
        """What can be seen, as PNG."""
        reply = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(reply["data"])

    async def begin(self) -> str:
        """Make the context and the page; gives the context's id."""
        context = str((await self.call("Target.createBrowserContext"))["browserContextId"])
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        return context

    async def end(self, context: str) -> None:
        """Close the page and forget its context."""
        self._session = None
        await self.call("Target.disposeBrowserContext", browserContextId=context)

    async def listen(self) -> None:
        """Take what the browser says, until it is closed."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answer(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.problems.append(said["params"]["entry"]["text"])
            elif said["method"] == "Runtime.consoleAPICalled" and said["params"]["type"] == "error":
                self.problems.append(str(said["params"]["args"]))

    def _answer(self, said: dict[str, Any]) -> None:
        reply = self._replies.pop(said["id"])
        if reply.done():
            return
        if "error" in said:
            reply.set_exception(AssertionError(said["error"]))
        else:
            reply.set_result(said["result"])


@asynccontextmanager
async def page(address: str) -> AsyncGenerator[Tab]:
    """A fresh page of a running Chromium."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
        asyncio.TaskGroup() as tasks,
    ):
        tab = Tab(socket)
        listening = tasks.create_task(tab.listen())
        context = await tab.begin()
        try:
            yield tab
        finally:
            await tab.end(context)
            listening.cancel()
