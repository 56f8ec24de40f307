"""The proxy with a history of its runs, in front of a scripted backend; under real uvicorn, in this event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from anabranch import Answer, Orchestrator
from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.strategy import Strategy
from anabranch.serving.proxy import Settings, create_app
from anabranch.serving.proxy.pages.history import History
from anabranch.serving.proxy.pages.runs_api import routes
from anabranch.serving.proxy.requests import RequestInfo
from anabranch.serving.proxy.settings import digest
from anabranch.testing import Reply, ScriptedBackend
from proxy_server import Client, client
from upstream import until

OUTLINE = Reply.of('{"points": ["Sleep enough", "Eat greens", "Walk daily"]}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The proxy, its history, and the engine that it runs on."""

    client: Client
    history: History
    orchestrator: Orchestrator

    async def run(self, strategy: Strategy, question: str = "Q", **info: Any) -> Answer:
        """Run a strategy as the proxy does for a request, without the request."""
        request = RequestInfo(**{"request_id": "req_test", "model": "scripted@do", **info})
        listener = self.history.run_opened(request)
        assert listener is not None
        try:
            return await self.orchestrator.ask(question, strategy=strategy, listeners=[listener])
        finally:
            self.history.request_ended(request)

    async def listed(self, **options: Any) -> list[dict[str, Any]]:
        """The runs that the proxy lists."""
        answer = await self.client.ask("/v1/anabranch/runs", **options)
        assert answer.status == 200, answer.content
        runs: list[dict[str, Any]] = answer.json["data"]
        return runs


def points(text: Mapping[str, Reply] | Callable[[str], Reply]) -> Callable[[Call], Reply]:
    """A script for the skeleton: an outline of three points, and a reply for each, by its title."""

    def script(call: Call) -> Reply:
        if call.constraint is not None:
            return OUTLINE
        begun = "".join(segment.text for segment in call.branch.segments)
        title = next((each for each in ("Sleep enough", "Eat greens", "Walk daily") if each in begun), "")
        return text(title) if callable(text) else text.get(title, Reply.of(f"About {title}."))

    return script


@asynccontextmanager
async def watched(
    script: Callable[[Call], Reply], *, most: int = 50, keys: tuple[str, ...] = (), **settings: Any
) -> AsyncGenerator[Watched]:
    """Serve; `keys` are the API keys that it wants."""
    history = History(most)
    chosen = Settings(api_keys=frozenset(map(digest, keys)), **settings)
    async with Orchestrator(ScriptedBackend(script)) as orchestrator:
        app = create_app(chosen, orchestrator, [history], routes(history))
        config = uvicorn.Config(app, log_config=None, lifespan="on", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server._serve([listener]))
        try:
            await until(lambda: server.started or serving.done(), 30)
            async with client(f"http://127.0.0.1:{listener.getsockname()[1]}") as made:
                yield Watched(client=made, history=history, orchestrator=orchestrator)
        finally:
            server.should_exit = True
            await serving
