"""From a branch to the token ids that the model sees: chat template, tokenizer, and the ids it wrote before.

Invariant: what the model wrote itself goes back as the ids that it wrote, never as text that is tokenized again.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.branch import Message, Segment
from anabranch.orchestrator.errors import RequestRejected, UnsupportedCapability
from anabranch.serving.backends.local.client import Client
from anabranch.serving.backends.local.slots import Tokens

TEMPLATE_OPTIONS = "chat_template_kwargs"
_REMEMBERED = 64


class Tokenizer:
    """The engine's tokenizer and chat template. Remembers the last conversations: siblings have the same."""

    def __init__(self, client: Client, vocabulary: str) -> None:
        self._client, self._vocabulary = client, vocabulary
        self._known: OrderedDict[str, Tokens] = OrderedDict()

    async def prompt(self, call: Call) -> Tokens:
        """All that the model is to see. Raises UnsupportedCapability where a message is not text."""
        tokens = await self._conversation(call.branch.messages, call.sampling.extra.get(TEMPLATE_OPTIONS))
        for part in _parts(call.branch.segments, self._vocabulary):
            tokens += await self.tokens(part) if isinstance(part, str) else part
        if not tokens:
            raise RequestRejected("the prompt is empty")
        return tokens

    async def tokens(self, text: str, *, begin: bool = False) -> Tokens:
        """The ids of a text, special tokens included; with `begin` also those that a prompt starts with."""
        reply = await self._client.post(
            "/tokenize", {"content": text, "add_special": begin, "parse_special": True}
        )
        return tuple(reply["tokens"])

    async def text(self, tokens: Tokens) -> str:
        """The text of some ids."""
        return str((await self._client.post("/detokenize", {"tokens": tokens}))["content"])

    async def _conversation(self, messages: tuple[Message, ...], options: Mapping[str, Any] | None) -> Tokens:
        body: dict[str, Any] = {"messages": [_wire(message) for message in messages]}
        if options:
            body[TEMPLATE_OPTIONS] = options
        key = json.dumps(body, sort_keys=True, default=str)
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        text = (await self._client.post("/apply-template", body))["prompt"]
        tokens = self._known[key] = await self.tokens(text, begin=True)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return tokens


def _wire(message: Message) -> dict[str, Any]:
    if not isinstance(message.content, tuple):
        return message.to_wire()
    if kinds := sorted({str(part.get("type")) for part in message.content} - {"text"}):
        raise UnsupportedCapability(f"the embedded engine reads text only, not {', '.join(kinds)}")
    return {**message.to_wire(), "content": message.text}


def _parts(segments: tuple[Segment, ...], vocabulary: str) -> Iterator[Tokens | str]:
    """The assistant's turn as ids where they are known, else as text; neighbouring texts are one."""
    for exact, group in groupby(segments, lambda each: bool(each.token_ids) and each.vocabulary == vocabulary):
        if exact:
            yield tuple(token for segment in group for token in segment.token_ids)
        elif text := "".join(segment.text for segment in group):
            yield text
