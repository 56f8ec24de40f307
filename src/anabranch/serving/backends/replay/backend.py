"""ReplayBackend: a recording that acts as a model server. Reads its file once, when it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from anabranch.orchestrator.backend import Call, Capabilities, Delta
from anabranch.serving.backends.replay.playing import Player
from anabranch.serving.backends.replay.pool import Pool
from anabranch.serving.backends.replay.settings import Settings
from anabranch.serving.recordings import read

_MOST = 1_000_000  # nothing decodes, so any number may be in flight


class ReplayBackend:
    """Recorded generations as a backend: a call gets the next trace of its problem, or goes on with its own.

    Traces are given out by sample number; with a seed, the seed picks one of those that are left. A branch that holds
    a part of a trace gets the rest of it.

    Raises:
        InvalidParameter: the file cannot be read, or a line of it is no trace.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(self.name, read(settings.file), again=settings.again)

    @property
    def name(self) -> str:
        """`replay:` and the file. It names the vocabulary, too."""
        return f"replay:{self._settings.file}"

    async def probe(self) -> Capabilities:
        """What the recording holds."""
        return Capabilities(
            models=self._pool.models or ("replay",),
            vocabulary=self.name,
            prefill=True,
            top_logprobs=self._pool.top_logprobs,
            abort=True,
            max_concurrency=_MOST,
        )

    async def stream(self, call: Call) -> AsyncGenerator[Delta]:
        """Play a trace; see `Backend.stream`.

        Raises:
            RequestRejected: the prompt was not recorded, or all of its traces were given out.
        """
        loop = asyncio.get_running_loop()
        part, began = self._pool.take(call), loop.time()
        for played in Player(part, call):
            due = began
            if self._settings.timed and played.seconds is not None:
                due += (played.seconds - part.since) / self._settings.speed
            # also where there is nothing to wait for: the other streams, and whoever watches this one, have their turn
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield played.delta

    async def aclose(self) -> None:
        """There is nothing to let go of."""
