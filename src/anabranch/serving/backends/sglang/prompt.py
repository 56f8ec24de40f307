"""From a branch to the ids that the server is to continue: the conversation, then the assistant's turn so far."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.orchestrator.backend import Call
from anabranch.orchestrator.branch import Segment
from anabranch.serving.backends.sglang import request
from anabranch.serving.backends.sglang.server import Server


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a prompt. `opened`: it ends within reasoning. `last`: how many ids the branch's last segment has."""

    ids: tuple[int, ...]
    opened: bool
    last: int = 0


NO_PROMPT = Prompt((), opened=False)
"""Of calls that are about a text on its own."""


async def prompt_of(call: Call, server: Server) -> Prompt:
    """The prompt of a call. Ids that the model wrote are used as they are; other text is tokenized on its own.

    Raises:
        UnsupportedCapability: the conversation holds more than text.
        BackendError: the server did not tokenize it.
    """
    ids: tuple[int, ...] = ()
    opened, begin = False, 0
    if messages := request.messages(call.branch):
        template = request.template(call.sampling)
        ids = await server.tokenizer.chat(messages, template)
        opened = await server.tokenizer.opens_reasoning(template, server.tags)
    for segment in call.branch.segments:
        begin = len(ids)
        if segment.token_ids and segment.vocabulary == server.capabilities.vocabulary:
            ids += segment.token_ids
            opened = await _opened_after(segment, server, before=opened)
        else:
            text = request.spoken(segment, server.tags, opened=opened)
            ids += await server.tokenizer.text(text)
            opened = server.tags.open_after(text, before=opened)
    return Prompt(ids, opened, len(ids) - begin if call.branch.segments else 0)


async def _opened_after(segment: Segment, server: Server, *, before: bool) -> bool:
    """Whether reasoning is open after what the model itself wrote. Its tags stand in the ids alone."""
    tags, tokenizer = server.tags, server.tokenizer
    if not segment.reasoning:
        return tags.open_after(segment.text, before=before)
    closing = await tokenizer.text(tags.end)
    if len(closing) == 1:
        return closing[0] not in segment.token_ids
    return tags.open_after(await tokenizer.decode(segment.token_ids, special=True), before=before)
