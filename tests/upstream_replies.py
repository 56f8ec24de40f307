"""What the model server of the tests says when it is well: ordinary replies of each endpoint.

They follow OpenAI's API reference, with the extra fields that SGLang sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from upstream import Behaviour, Reply, Request
from upstream_forms import DONE, event, refusal, stream, whole

MODEL = "stub"
WITH_AT = "org/real@2024"
"""A model whose own name has an @."""
POINTS = ("Walk every day", "Sleep enough", "Eat more plants")


def listing(*names: str, owner: str = "stub") -> Behaviour:
    """The list of models."""
    models = [
        {"id": name, "object": "model", "created": 1, "owned_by": owner, "max_model_len": 4096}
        for name in names
    ]
    return whole({"object": "list", "data": models})


class Ordinary:
    """A healthy server.

    Attributes:
        pieces: what it says, where nothing else is asked for.
        pace_s: seconds between two pieces of a stream.
        by_kind: other behaviours, by `kind` of request.
    """

    def __init__(self, *pieces: str, pace_s: float = 0.0, **by_kind: Behaviour) -> None:
        self.pieces = pieces or ("All ", "is ", "well", ", naïve ", "world 🌍", ".")
        self.pace_s = pace_s
        self.by_kind = by_kind

    async def __call__(self, request: Request, reply: Reply) -> None:
        """Answer a request; one that makes no sense is refused."""
        try:
            behave = self._known(request) or self._for(request)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            behave = refusal(400, f"this makes no sense: {error}")
        await behave(request, reply)

    def _known(self, request: Request) -> Behaviour | None:
        return self.by_kind.get(kind(request.json)) if self.by_kind else None

    def _for(self, request: Request) -> Behaviour:
        path = request.path.partition("/v1")[2]
        if path.startswith(("/echo", "/audio", "/files", "/moderations")):
            return whole({"method": request.method, "target": request.target, "length": len(request.body)})
        body = request.json
        if not 1 <= (body.get("n") or 1) <= 128:
            raise ValueError("n must be 1 to 128")
        if path == "/chat/completions":
            return self._chat(body)
        if path == "/completions":
            return self._completions(body)
        if path == "/embeddings":
            vectors = [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}]
            return whole(
                {
                    "object": "list",
                    "data": vectors,
                    "model": MODEL,
                    "usage": {"prompt_tokens": 2, "total_tokens": 2},
                }
            )
        if path == "/responses":
            return self._responses(body)
        return refusal(404, "no such path", type="not_found_error", code="not_found")

    def _chat(self, body: Mapping[str, Any]) -> Behaviour:
        texts, finish = self._said(body)
        if body.get("stream"):
            return self._paced(list(chat_events(body, texts, finish)))
        choices = [
            {
                "index": index,
                "message": _message(body, texts),
                "logprobs": _logprobs(body, texts),
                "finish_reason": finish,
                "matched_stop": None,
            }
            for index in range(body.get("n") or 1)
        ]
        return whole(
            {
                **_head("chat.completion", body),
                "choices": choices,
                "usage": _usage(body, texts),
                "unknown_to_all": {"kept": True},
            }
        )

    def _completions(self, body: Mapping[str, Any]) -> Behaviour:
        texts, finish = self._said(body)
        if body.get("stream"):
            chunks = [_text_choice(body, text, None) for text in texts] + [_text_choice(body, "", finish)]
            return self._paced([*map(event, chunks), DONE])
        return whole({**_text_choice(body, "".join(texts), finish), "usage": _usage(body, texts)})

    def _responses(self, body: Mapping[str, Any]) -> Behaviour:
        texts, _ = self._said(body)
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "".join(texts), "annotations": []}],
        }
        response = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": body.get("model"),
            "status": "completed",
            "output": [message],
        }
        if not body.get("stream"):
            return whole(response)
        deltas = [
            {
                "type": "response.output_text.delta",
                "item_id": "msg_1",
                "output_index": 0,
                "content_index": 0,
                "delta": text,
            }
            for text in texts
        ]
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
            *deltas,
            {"type": "response.completed", "response": response},
        ]
        return self._paced(
            [
                event({**each, "sequence_number": number}, name=str(each["type"]))
                for number, each in enumerate(events)
            ]
        )

    def _said(self, body: Mapping[str, Any]) -> tuple[list[str], str]:
        """Pieces of text and the finish reason."""
        texts = _asked_for(body) or list(self.pieces)
        if _wants_tool(body):
            return [], "tool_calls"
        for stop in _stops(body):
            before, found, _ = "".join(texts).partition(stop)
            if found:
                return [before], "stop"
        cap = body.get("max_completion_tokens") or body.get("max_tokens")
        return (texts[:cap], "length") if isinstance(cap, int) and cap < len(texts) else (texts, "stop")

    def _paced(self, events: Iterable[bytes]) -> Behaviour:
        return stream(*events, done=False, pace_s=self.pace_s)


def saying(*pieces: str, pace_s: float = 0.0) -> Behaviour:
    """Says this in a stream, whatever it is asked."""

    async def behave(request: Request, reply: Reply) -> None:
        await stream(*chat_events(request.json, list(pieces)), done=False, pace_s=pace_s)(request, reply)

    return behave


def kind(body: Mapping[str, Any]) -> str:
    """What part of a strategy a request is for: `outline`, `point1` …, else `plain`."""
    last = _last_text(body)
    if last.startswith("Outline the answer"):
        return "outline"
    point = re.search(r"^Point (\d+): ", last, re.MULTILINE)
    return f"point{point.group(1)}" if point and "outline" in last else "plain"


def _last_text(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    asked = (
        [each for each in messages if isinstance(each, dict) and each.get("role") == "user"]
        if isinstance(messages, list)
        else []
    )
    content = asked[-1].get("content") if asked else ""
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _asked_for(body: Mapping[str, Any]) -> list[str] | None:
    """What a skeleton's calls are answered with."""
    which = kind(body)
    if which == "outline":
        if body.get("response_format"):
            return [json.dumps({"points": POINTS})]
        return [f"{number}. {title}\n" for number, title in enumerate(POINTS, 1)]
    if which.startswith("point"):
        return [f"Of point {which[5:]}", " this ", "is said."]
    return None


def _wants_tool(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    return bool(body.get("tools")) and isinstance(last, dict) and last.get("role") == "user"


def _stops(body: Mapping[str, Any]) -> list[str]:
    stop = body.get("stop")
    return (
        [stop]
        if isinstance(stop, str)
        else [each for each in stop or () if isinstance(each, str) and each]
        if isinstance(stop, list)
        else []
    )


def _head(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-upstream",
        "object": kind,
        "created": 1_700_000_000,
        "model": body.get("model") or MODEL,
    }


def _tool_call() -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"what": "é"}'}}


def _message(body: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None, "refusal": None}
    if _wants_tool(body):
        message["tool_calls"] = [_tool_call()]
    if body.get("reasoning_effort"):
        message["reasoning_content"] = "Hm. "
    return message


def _logprobs(body: Mapping[str, Any], texts: list[str]) -> dict[str, Any] | None:
    if not body.get("logprobs"):
        return None
    return {
        "content": [
            {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []} for text in texts
        ],
        "refusal": None,
    }


def _usage(body: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    prompt, completion = 10, len(texts) * (body.get("n") or 1)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def _text_choice(body: Mapping[str, Any], text: str, finish: str | None) -> dict[str, Any]:
    return {
        **_head("text_completion", body),
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}],
    }


def chat_events(body: Mapping[str, Any], texts: list[str], finish: str = "stop") -> Iterator[bytes]:
    """A streamed chat completion."""

    def chunk(
        index: int, delta: Mapping[str, Any], reason: str | None = None, text: str | None = None
    ) -> bytes:
        logprobs = _logprobs(body, [text]) if text else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return event({**_head("chat.completion.chunk", body), "choices": [choice], "unknown_to_all": 1})

    indices = range(body.get("n") or 1)
    for index in indices:
        yield chunk(index, {"role": "assistant", "content": ""})
        if body.get("reasoning_effort"):
            yield chunk(index, {"reasoning_content": "Hm. "})
        if _wants_tool(body):
            yield chunk(index, {"tool_calls": [{"index": 0, **_tool_call()}]})
    for text in texts:
        for index in indices:
            yield chunk(index, {"content": text}, text=text)
    for index in indices:
        yield chunk(index, {}, finish)
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield event({**_head("chat.completion.chunk", body), "choices": [], "usage": _usage(body, texts)})
    yield DONE
