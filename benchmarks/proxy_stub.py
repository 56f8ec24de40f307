"""A model server that has every answer ready: what a proxy in front of it costs is then the proxy's own.

It speaks as much of OpenAI's API and of SGLang's native one as proxies ask for, in bytes made once for each length.
`max_tokens` is the number of pieces. Pieces go out at once; where the request has a field `paced`, one by one with
a pause before each, as a model writes. It takes no request apart beyond that, and does not notice a bad one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import uvloop

MODEL = "stub"
WORD = "word "
PACED = "paced"
"""The field of a request whose pieces are to come one by one."""
PAUSE_S = 0.004
PIECES = 50
"""Pieces of a reply where the request does not say."""
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": *true')
_PACED = re.compile(rb'"paced": *true')
_CAP = re.compile(rb'"max_(?:new_|completion_|output_)?tokens": *(\d+)')

Frames = tuple[bytes, ...]
"""What goes out, piece by piece."""


class Stub(asyncio.Protocol):
    """One connection; its requests come one after another."""

    def __init__(self) -> None:
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def connection_lost(self, error: Exception | None) -> None:
        """Write no more."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Answer what is there as a whole."""
        self._held += data
        while (end := self._held.find(_HEAD_END)) >= 0:
            found = _LENGTH.search(self._held, 0, end + 2)
            whole = end + len(_HEAD_END) + (int(found.group(1)) if found else 0)
            if len(self._held) < whole:
                return
            request, self._held = self._held[:whole], self._held[whole:]
            frames = reply(request.split(b" ", 2)[1], request[end + len(_HEAD_END) :])
            if _PACED.search(request):
                self._pace(frames)
            elif self._transport is not None:
                self._transport.write(b"".join(frames))

    def _pace(self, frames: Frames, at: int = 0) -> None:
        if self._transport is None:
            return
        self._transport.write(frames[at])
        if at + 1 < len(frames):
            asyncio.get_running_loop().call_later(PAUSE_S, self._pace, frames, at + 1)


def reply(path: bytes, body: bytes) -> Frames:
    """The reply to a request."""
    if path == b"/tokenize":
        return whole({"tokens": [1, 2, 3, 4], "count": 4, "max_model_len": 8192})
    if path == b"/detokenize":
        ids = json.loads(body)["tokens"]
        return whole({"text": [WORD] * len(ids) if ids and isinstance(ids[0], list) else WORD * len(ids)})
    make = _READY.get(path.partition(b"?")[0])
    if make is None:
        return _not_found()
    cap = _CAP.search(body)
    return make(_STREAM.search(body) is not None, int(cap.group(1)) if cap else PIECES)


@cache
def completion(stream: bool, pieces: int) -> Frames:
    """A chat completion of so many words."""
    head = {"id": "chatcmpl-1", "created": 1, "model": MODEL}
    usage = {"prompt_tokens": 4, "completion_tokens": pieces, "total_tokens": pieces + 4}
    if not stream:
        message = {"role": "assistant", "content": WORD * pieces}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return whole({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas = [{"content": WORD}] * pieces
    deltas[0] = {"role": "assistant", **deltas[0]}
    chunks = [
        {
            **head,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
            "usage": None if finish is None else usage,
        }
        for delta, finish in [*((delta, None) for delta in deltas), ({}, "stop")]
    ]
    return events(chunks)


@cache
def generated(stream: bool, pieces: int) -> Frames:
    """A reply of SGLang's `/generate`, with what it says beside the text."""
    chunks = [
        {"text": WORD, "output_ids": [7], "meta_info": _meta_info(count + 1, last=count + 1 == pieces)}
        for count in range(pieces)
    ]
    return events(chunks) if stream else whole({**chunks[-1], "text": WORD * pieces})


def _meta_info(count: int, *, last: bool) -> dict[str, Any]:
    return {
        "id": "0123456789abcdef0123456789abcdef",
        "finish_reason": {"type": "length", "length": count} if last else None,
        "prompt_tokens": 4,
        "weight_version": "default",
        "num_retractions": 0,
        "forward_entry_time": 1796102447.6676774,
        "prefill_finished_time": 1796102447.7734842,
        "queue_time": 0.0005385629992815666,
        "reasoning_tokens": 0,
        "completion_tokens": count,
        "cached_tokens": 3,
        "cached_tokens_details": {"device": 3, "host": 0},
        "dp_rank": None,
        "response_sent_to_client_ts": 1796102447.7764313,
    }


@cache
def models(stream: bool, pieces: int) -> Frames:
    """The one model."""
    model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "sglang", "max_model_len": 8192}
    return whole({"object": "list", "data": [{**model, "root": MODEL, "parent": None}]})


@cache
def about(stream: bool, pieces: int) -> Frames:
    """What an SGLang server says of itself, as far as it matters."""
    return whole({"incremental_streaming_output": True, "grammar_backend": "xgrammar", "dp_size": 1})


def whole(body: object) -> Frames:
    """A reply of JSON."""
    content = json.dumps(body).encode()
    return (_head(b"200 OK", b"application/json", b"content-length: %d" % len(content)) + content,)


def events(chunks: list[dict[str, Any]]) -> Frames:
    """A reply of server-sent events, each in a frame of its own."""
    data = [json.dumps(chunk, separators=(",", ":")).encode() for chunk in chunks] + [b"[DONE]"]
    framed = [_framed(b"data: " + each + b"\n\n") for each in data]
    head = _head(b"200 OK", b"text/event-stream; charset=utf-8", b"transfer-encoding: chunked")
    return (head, *framed[:-1], framed[-1] + b"0\r\n\r\n")


@cache
def _not_found() -> Frames:
    content = b'{"detail":"Not Found"}'
    return (_head(b"404 Not Found", b"application/json", b"content-length: %d" % len(content)) + content,)


def _head(status: bytes, kind: bytes, framing: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nserver: stub\r\ncontent-type: %b\r\n%b\r\n\r\n" % (status, kind, framing)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_READY: Mapping[bytes, Callable[[bool, int], Frames]] = {
    b"/v1/chat/completions": completion,
    b"/chat/completions": completion,
    b"/v1/models": models,
    b"/server_info": about,
    b"/generate": generated,
}


async def serve(port: int) -> None:
    """Answer until ended."""
    listening = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=1024)
    await listening.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    uvloop.run(serve(options.parse_args().port))
