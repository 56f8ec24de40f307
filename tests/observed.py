"""Requests served under observation, without HTTP: the runs are real ones, on the virtual clock."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from typing import Any

from anabranch import Orchestrator
from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.scheduler.retrying import RetryPolicy
from anabranch.serving.proxy.errors import of_exception
from anabranch.serving.proxy.requests import PLAIN, Observer, RequestInfo
from anabranch.serving.proxy.runs import Runs
from anabranch.testing import Reply, ScriptedBackend, run_virtual

QUESTION = "What are good habits?"
TITLES = ["Sleep well", "Eat greens", "Walk daily"]


def skeleton(*points: Reply) -> ScriptedBackend:
    """Writes an outline of three points, and for each its reply."""
    outline = Reply(
        chunks=(json.dumps({"points": TITLES}),), tokens=30, prompt_tokens=100, cached_tokens=20, delay_s=1
    )

    def reply(call: Call) -> Reply:
        found = re.search(r"^Point (\d+): ", call.branch.question, re.MULTILINE)
        return points[int(found[1]) - 1] if found else outline

    return ScriptedBackend(reply, name="sglang://models.example:30000")


def serve(
    observers: Sequence[Observer],
    backend: ScriptedBackend,
    *,
    strategy: str = "sequential",
    n: int = 1,
    left_after_s: float | None = None,
    stream: bool = False,
    **more: Any,
) -> RequestInfo:
    """Serve one chat completion, as the proxy does. What the retry policy waits is 0.

    Args:
        left_after_s: the client goes away then.
        more: further fields of the request, and `arguments` for `Orchestrator.ask`.
    """
    arguments = {"strategy": strategy, **more.pop("arguments", {})}
    request = RequestInfo(
        request_id="req_1",
        method="POST",
        path="/v1/chat/completions",
        model=f"M@{strategy}",
        strategy=strategy,
        stream=stream,
        started_at=time.time(),
        **more,
    )

    async def scenario() -> None:
        began = asyncio.get_running_loop().time()
        for observer in observers:
            observer.request_began(request)
        async with Orchestrator(backend, retry=RetryPolicy(first_wait_s=0)) as orch:
            await _answer(orch, request, observers, arguments, n, left_after_s)
        request.wall_s = asyncio.get_running_loop().time() - began
        for observer in observers:
            observer.request_ended(request)

    run_virtual(scenario())
    return request


async def _answer(
    orch: Orchestrator,
    request: RequestInfo,
    observers: Sequence[Observer],
    arguments: Any,
    n: int,
    left_after_s: float | None,
) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    request.status = 499
    try:
        async with (
            asyncio.timeout(left_after_s),
            Runs(orch, messages, arguments, n=n, progress=False, request=request, observers=observers) as runs,
        ):
            while not runs.done:
                await runs.next()
            request.status = 200
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - as the proxy does
        request.status = of_exception(error).status


def passed_through(observers: Sequence[Observer], **fields: Any) -> RequestInfo:
    """A request that has no run."""
    known = {
        "request_id": "req_2",
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "M",
        "strategy": PLAIN,
        "status": 200,
        "started_at": 1_800_000_000.25,
    }
    given = {**known, "first_byte_s": 0.2, "wall_s": 0.5, **fields}
    request = RequestInfo(**given)
    for observer in observers:
        observer.request_began(request)
        observer.request_ended(request)
    return request
