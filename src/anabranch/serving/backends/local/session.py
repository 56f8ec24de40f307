"""Session: one running engine, and the calls that it works on. A dead engine's session is thrown away.

The life of a call: template and tokenizer give its ids; the desk gives it a slot; what another slot has computed of
its prompt is restored; where siblings will want its prompt, it is computed and saved; then it decodes.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from anabranch.orchestrator.backend import Call, Capabilities, Delta, End, PrefixSharing, TokenUsage
from anabranch.orchestrator.errors import BackendUnavailable, MalformedResponse, RequestRejected
from anabranch.serving.backends.local import constraints, labels, request
from anabranch.serving.backends.local.client import Client
from anabranch.serving.backends.local.desk import SlotDesk
from anabranch.serving.backends.local.engine import Engine
from anabranch.serving.backends.local.prompts import Tokenizer
from anabranch.serving.backends.local.reply import Reader
from anabranch.serving.backends.local.slots import Lease, SlotTable, Tokens, Wish

_HEADER_BYTES = 1024  # of a slot's file, before its tokens; a few words in truth


class Session:
    """One running engine. Made by `open`.

    Attributes:
        engine: its process.
        capabilities: what it can do.
    """

    def __init__(self, engine: Engine, client: Client, capabilities: Capabilities, words: int) -> None:
        self.engine, self.capabilities = engine, capabilities
        self._client, self._words = client, words
        self._tokenizer = Tokenizer(client, capabilities.vocabulary)
        room = capabilities.max_concurrency * (capabilities.context_length or 0)
        self._desk = SlotDesk(SlotTable(capabilities.max_concurrency, room), engine.folder)

    @classmethod
    async def open(cls, engine: Engine, vocabulary: str) -> Session:
        """Ask a started engine what it can do."""
        client = Client(engine.url, engine.key, engine.obituary)
        props, models = await client.get("/props"), await client.get("/v1/models")
        kinds = constraints.ALWAYS | ({"regex"} if await _obeys_regex(client) else set())
        try:
            model = models["data"][0]
            capabilities = Capabilities(
                models=(str(model["id"]),),
                vocabulary=vocabulary,
                prefill=True,
                constraints=frozenset(kinds),
                top_logprobs=request.TOP_LOGPROBS,
                labels=True,
                abort=True,
                cached_tokens=True,
                prefix_sharing=PrefixSharing.BACKEND,
                max_concurrency=int(props["total_slots"]),
                context_length=int(props["default_generation_settings"]["n_ctx"]),
            )
            return cls(engine, client, capabilities, int(model["meta"]["n_vocab"]))
        except (KeyError, IndexError, TypeError) as error:
            raise MalformedResponse(f"the embedded engine does not say what it is: no {error}") from error

    async def perform(self, call: Call) -> AsyncGenerator[Delta]:
        """Run one call; see `Backend.stream`."""
        with self._desk.arriving():
            prompt = await self._tokenizer.prompt(call)
            place = self._desk.queue(Wish(tokens=prompt, group=call.group, siblings=call.siblings))
        lease = await self._desk.turn(place)
        work = _Work(self._client, self._tokenizer, self.engine.folder, call, lease)
        try:
            await work.prepare()
            if lease.save:
                self._desk.saved(lease)
            async with aclosing(self._deltas(work)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._desk.release(lease, work.held)

    def _deltas(self, work: _Work) -> AsyncGenerator[Delta]:
        model = self.capabilities.models[0]
        return work.score(model, self._words) if work.call.labels else work.generate(model)

    async def close(self) -> None:
        """End the engine."""
        await self.engine.stop()


class _Work:
    """One call in its slot. `held` is what the slot holds, as far as is known."""

    def __init__(self, client: Client, tokenizer: Tokenizer, folder: Path, call: Call, lease: Lease) -> None:
        self.call, self.held = call, Tokens()
        self._client, self._tokenizer, self._folder, self._lease = client, tokenizer, folder, lease
        self._prompt = lease.wish.tokens
        self._computed = 0

    async def prepare(self) -> None:
        """Restore what another slot computed; compute the prompt and save it, where siblings will want it."""
        if self._lease.restore:
            with suppress(RequestRejected):  # then it is computed
                await self._slot_action("restore", self._lease.restore)
        if self._lease.save:
            last = await self._last_event(request.warm_up(self._prompt, self._lease.slot))
            self._computed = int(last["timings"]["prompt_n"])
            self.held = self._prompt
            await self._slot_action("save", self._lease.save)

    async def generate(self, model: str) -> AsyncGenerator[Delta]:
        """Decode."""
        reader = Reader(self.call, model=model, computed_before=self._computed)
        body = request.completion(self.call, self._prompt, self._lease.slot)
        async with aclosing(self._client.events("/completion", body)) as events:
            async for event in events:
                self.held = self._prompt
                if (delta := reader.feed(event)) is not None:
                    yield delta
        if not reader.finished:
            raise BackendUnavailable("the embedded engine broke off")
        if reader.gaps:
            reader.fill(await self._written(reader.predicted))
        tokens = reader.tokens()
        self.held = self._prompt + tokens
        decoded = await self._tokenizer.text(tokens) if reader.cut and tokens else None
        yield reader.end(decoded)

    async def score(self, model: str, words: int) -> AsyncGenerator[Delta]:
        """Score the labels of the call."""
        usage = TokenUsage(prompt=len(self._prompt))

        async def ask(before: Tokens, alternatives: int) -> Mapping[int, float]:
            nonlocal usage
            tokens = self._prompt + before
            first, last = await self._first_and_last(request.next_token(tokens, self._lease.slot, alternatives))
            self.held = tokens
            if not usage.completion:
                cached = max(0, int(last["timings"]["cache_n"]) - self._computed)
                usage = TokenUsage(prompt=len(self._prompt), cached=cached, completion=1)
            top = first["completion_probabilities"][0]["top_logprobs"]
            return {each["id"]: each["logprob"] for each in top if each["logprob"] is not None}

        ids = {label: await self._tokenizer.tokens(label) for label in self.call.labels}
        scores = await labels.score(ids, ask, words)
        yield Delta(tokens=0, end=End(usage=usage, label_logprobs=scores, model=model))

    async def _written(self, predicted: int) -> Tokens:
        """What the slot holds after the prompt: the stream leaves out tokens that end within a character."""
        name = f"written-{self._lease.slot}.bin"
        try:
            saved = await self._slot_action("save", name)
            count = min(predicted, int(saved["n_saved"]) - len(self._prompt))
            return tokens_after(self._folder / name, self._prompt, count)
        finally:
            (self._folder / name).unlink(missing_ok=True)

    async def _slot_action(self, action: str, name: str) -> Mapping[str, Any]:
        path = f"/slots/{self._lease.slot}?action={action}"
        return await self._client.post(path, {"filename": name})

    async def _last_event(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return (await self._first_and_last(body))[1]

    async def _first_and_last(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        async with aclosing(self._client.events("/completion", body)) as stream:
            events = [event async for event in stream]
        if not events or not events[-1].get("stop"):
            raise BackendUnavailable("the embedded engine broke off")
        return events[0], events[-1]


async def _obeys_regex(client: Client) -> bool:
    try:
        events = [event async for event in client.events("/completion", request.probe_regex())]
    except RequestRejected:
        return False
    return "".join(str(event.get("content", "")) for event in events) == request.PROBE_ANSWER


def tokens_after(file: Path, prompt: Tokens, count: int) -> Tokens:
    """The tokens that follow a prompt in a slot's file; none where it cannot be made out.

    The file begins with a short header of changing layout, then the ids as 32-bit words.
    """
    wanted = struct.pack(f"={len(prompt)}i", *prompt)
    with file.open("rb") as source:
        head = source.read(_HEADER_BYTES + len(wanted) + 4 * max(count, 0))
    start = head.find(wanted)
    words = head[start + len(wanted) :][: 4 * max(count, 0)]
    if start < 0 or len(words) % 4:
        return ()
    return struct.unpack(f"={len(words) // 4}i", words)
