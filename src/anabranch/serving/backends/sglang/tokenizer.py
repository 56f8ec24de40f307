"""The server's own tokenizer, asked over HTTP and remembered: chat template, text to ids, ids to text.

What is asked by many siblings at once is asked of the server once. It keeps at most `KEPT_IDS` ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from anabranch.orchestrator.errors import BackendError, MalformedResponse
from anabranch.serving.backends.sglang.connection import Connection
from anabranch.serving.backends.sglang.thinking import Tags

KEPT_IDS = 1_000_000
"""Most token ids that are remembered."""

_SAMPLE = (
    "The quick brown fox, 12345 times; naïve Ünïcode. 你好世界 こんにちは Привет مرحبا 😀🤖\n\n\tdef f(x):\n        return x"
    "<think></think><tool_call></tool_call><|im_start|><|im_end|><|endoftext|><s></s>[INST][/INST]<bos><|eot_id|>"
)
_SPARSE = range(0, 2**19, 211)
_Ids = tuple[int, ...]


class RemoteTokenizer:
    """What `/tokenize` and `/detokenize` of one server say."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept: OrderedDict[bytes, _Ids] = OrderedDict()
        self._kept_ids = 0
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._spaced: bool | None = None
        self._opens: dict[bytes, bool] = {}

    async def chat(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> _Ids:
        """A conversation through the chat template, up to where the assistant begins.

        Args:
            template: further fields for the template (`chat_template_kwargs`, `reasoning_effort`, `tools`, …).
        """
        body = {**template, "messages": list(messages)}
        return await self._once(_key(body), lambda: self._tokenize(body))

    async def text(self, text: str) -> _Ids:
        """A piece of text that stands within a turn: without special tokens around it."""
        return await self._once(_key(text), lambda: self._inner(text))

    async def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of these ids, special tokens left out unless `special`."""
        answer = await self._connection.post(
            "/detokenize", {"tokens": list(ids), "skip_special_tokens": not special}
        )
        return str(_field(answer, "text"))

    async def opens_reasoning(self, template: Mapping[str, Any], tags: Tags) -> bool:
        """Whether the chat template opens the assistant's turn within its reasoning."""
        key = _key(template)
        if key not in self._opens:
            prompt = await self.chat([{"role": "user", "content": "Hi"}], template)
            self._opens[key] = tags.open_after(await self.decode(prompt[-16:], special=True), before=False)
        return self._opens[key]

    async def fingerprint(self) -> str:
        """A name for the vocabulary, equal only where token ids mean the same and there are equally many.

        It is measured, not read from a path: the ids of a sample text, the text of a sample of ids, and all the
        ids around the end of the vocabulary.
        """
        digest = hashlib.blake2b(digest_size=8)
        digest.update(str(await self._tokenize({"prompt": _SAMPLE, "add_special_tokens": True})).encode())
        sparse = await self._texts(_SPARSE)
        last = max((at for at, text in zip(_SPARSE, sparse, strict=True) if text), default=0)
        dense = await self._texts(range(last - _SPARSE.step, last + _SPARSE.step))
        digest.update("\0".join([*sparse, *dense]).encode())
        return digest.hexdigest()

    async def _texts(self, ids: Sequence[int]) -> list[str]:
        """Each id's text on its own; empty texts where the server cannot say."""
        body = {"tokens": [[max(0, i)] for i in ids], "skip_special_tokens": False}
        try:
            return [str(text) for text in _field(await self._connection.post("/detokenize", body), "text")]
        except BackendError:
            return [""] * len(ids)

    async def _inner(self, text: str) -> _Ids:
        if self._spaced is None:
            alone = [await self._plain(piece) for piece in ("\n", "a", "\na")]
            self._spaced = alone[0] + alone[1] != alone[2]
        if not self._spaced:
            return await self._plain(text)
        # A SentencePiece tokenizer puts a blank before whatever comes first: let that be a newline, and drop it.
        lead, led = await self._plain("\n"), await self._plain("\n" + text)
        return led[len(lead) :] if led[: len(lead)] == lead else await self._plain(text)

    async def _plain(self, text: str) -> _Ids:
        return await self._tokenize({"prompt": text, "add_special_tokens": False})

    async def _tokenize(self, body: Mapping[str, Any]) -> _Ids:
        return tuple(_field(await self._connection.post("/tokenize", body), "tokens"))

    async def _once(self, key: bytes, ask: Callable[[], Awaitable[_Ids]]) -> _Ids:
        """What is remembered under the key, or else asked for, by one caller while the others wait."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            if key not in self._kept:
                self._keep(key, await ask())
            return self._kept[key]

    def _keep(self, key: bytes, ids: _Ids) -> None:
        self._kept[key] = ids
        self._kept_ids += len(ids)
        while self._kept_ids > KEPT_IDS and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_ids -= len(dropped)


def _key(value: object) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def _field(answer: Any, name: str) -> Any:
    if not isinstance(answer, dict) or name not in answer:
        raise MalformedResponse(f"the tokenizer's answer has no {name!r}: {str(answer)[:200]}")
    return answer[name]
