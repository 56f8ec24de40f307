"""The proxy as an ASGI application: endpoints, and what they stand on.

The life of a request: the guard lets it in; `choose` reads which strategy it names; without one it goes through the
relay; with one it becomes `Runs`, whose pieces `Chat` or `Responses` puts on the wire as they are written.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from anabranch.orchestrator.orchestrator import Orchestrator
from anabranch.orchestrator.strategy import Strategy
from anabranch.serving.proxy import chat, responses
from anabranch.serving.proxy.choice import EXTENSION, HEADER, Choice, build, choose, unknown_strategy
from anabranch.serving.proxy.errors import ProxyError, bad_request, of_exception
from anabranch.serving.proxy.guard import Guard, send_json
from anabranch.serving.proxy.models import one_model, with_virtual
from anabranch.serving.proxy.relay import Passing
from anabranch.serving.proxy.requests import PLAIN, Observer, RequestInfo
from anabranch.serving.proxy.runs import Runs
from anabranch.serving.proxy.settings import SEPARATOR, Settings
from anabranch.serving.proxy.sse import error_event, json_bytes, send_stream
from anabranch.serving.proxy.upstreams import Upstream, Upstreams

BASE = "/v1"

Handler = Callable[[Scope, Send], Awaitable[None]]


def create_app(
    settings: Settings | None = None,
    orchestrator: Orchestrator | None = None,
    observers: Sequence[Observer] = (),
    routes: Sequence[Route] = (),
    closing: Sequence[Callable[[], Awaitable[None]]] = (),
    on_models: Callable[[frozenset[str]], None] = lambda names: None,
) -> Guard:
    """The proxy, an ASGI application.

    Args:
        orchestrator: the engine to use; else one is opened for `settings.backend`, and closed at the end.
        observers: told of every request and every run.
        routes: further routes: pages, metrics.
        closing: called at the end, whatever happens.
        on_models: told the names of the server's models whenever they were asked for.
    """
    return Proxy(settings or Settings(), orchestrator, observers, routes, closing, on_models).app


class Endpoint:
    """A handler as ASGI application: Starlette hands it the connection as it is."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; its body is in the scope's state already."""
        await self._handler(scope, send)


class Proxy:
    """The endpoints."""

    def __init__(
        self,
        settings: Settings,
        orchestrator: Orchestrator | None,
        observers: Sequence[Observer],
        routes: Sequence[Route],
        closing: Sequence[Callable[[], Awaitable[None]]],
        on_models: Callable[[frozenset[str]], None],
    ) -> None:
        self._settings, self._observers, self._closing = settings, observers, closing
        self._upstreams = Upstreams(settings, orchestrator, on_models)
        own = [
            Route(BASE + "/chat/completions", Endpoint(self._chat), methods=["POST"]),
            Route(BASE + "/responses", Endpoint(self._responses), methods=["POST"]),
            Route(BASE + "/completions", Endpoint(self._pass), methods=["POST"]),
            Route(BASE + "/embeddings", Endpoint(self._pass), methods=["POST"]),
            Route(BASE + "/models", Endpoint(self._models), methods=["GET"]),
            Route(BASE + "/models/{id:path}", Endpoint(self._model), methods=["GET"]),
            Route("/health", Endpoint(_health), methods=["GET"]),
            Route("/ready", Endpoint(self._ready), methods=["GET"]),
            Route("/version", Endpoint(_version), methods=["GET"]),
            Route("/openapi.json", Endpoint(_openapi), methods=["GET"]),
            *routes,
            Route(BASE + "/{path:path}", Endpoint(self._pass), methods=None),
        ]
        router = Router(own, default=_not_found, redirect_slashes=False, lifespan=self._lifespan)
        self.app = Guard(router, settings, observers)

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for close in self._closing:
                stack.push_async_callback(close)
            stack.push_async_callback(self._upstreams.aclose)
            await self._upstreams.open()
            yield

    # Endpoints

    async def _chat(self, scope: Scope, send: Send) -> None:
        body = read_json(scope["state"]["body"])
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            raise bad_request("messages: must be a list with at least one message", param="messages")
        choice, upstream = await self._chosen(scope, body)
        if choice.plain and upstream.passes:
            return await self._through(scope, send, upstream, body, choice)
        request = chat.read(chat.ChatRequest, body)
        strategy, budget = build(_or_sequential(choice), self._settings, effort=body.get("reasoning_effort"))
        if upstream.passes and (reason := chat.beyond(request, strategy)) is not None:
            return await self._instead(scope, send, upstream, body, choice, reason)
        refuse_unsendable(body)
        arguments = request.arguments(strategy, self._within_deadline(budget), choice.model)
        runs = self._runs(scope, upstream, choice, request.messages, arguments, strategy, n=request.n or 1)
        wire = chat.Chat(request, runs, model=str(body.get("model") or ""))
        async with runs:
            if request.stream:
                await self._send_stream(scope, send, runs, strategy, wire.frames(self._settings.keep_alive_s))
            else:
                await self._send_whole(scope, send, runs, await wire.completion())

    async def _responses(self, scope: Scope, send: Send) -> None:
        body = read_json(scope["state"]["body"])
        choice, upstream = await self._chosen(scope, body)
        if choice.plain and upstream.passes:
            return await self._through(scope, send, upstream, body, choice)
        request = chat.read(responses.ResponsesRequest, body)
        strategy, budget = build(_or_sequential(choice), self._settings, effort=request.effort)
        if upstream.passes and (reason := responses.beyond(request, strategy)) is not None:
            return await self._instead(scope, send, upstream, body, choice, reason)
        refuse_unsendable(body)
        arguments = request.arguments(strategy, self._within_deadline(budget), choice.model)
        runs = self._runs(scope, upstream, choice, request.messages(), arguments, strategy, n=1)
        wire = responses.Responses(request, runs, model=str(body.get("model") or ""))
        async with runs:
            if request.stream:
                frames = wire.frames(self._settings.keep_alive_s)
                await self._send_stream(scope, send, runs, strategy, frames, failed=wire.failed)
            else:
                await self._send_whole(scope, send, runs, await wire.response())

    async def _pass(self, scope: Scope, send: Send) -> None:
        """Whatever else there is below /v1: the model server's own."""
        if ".." in scope["path"].split("/"):
            # Servers that resolve it would be asked for what is not below /v1, such as their controls.
            raise ProxyError(status=404, message=f"no such path: {scope['path']}", code="not_found")
        body: bytes = scope["state"]["body"]
        if EXTENSION.encode() in body or b"@" in body:
            _refuse_strategy(body, scope["path"], self._settings)
        await self._relay(scope, send, await self._upstreams.get(), body)

    async def _models(self, scope: Scope, send: Send) -> None:
        listed = await (await self._upstreams.get()).models()
        await send_json(send, 200, with_virtual(listed, self._settings.names()), {})

    async def _model(self, scope: Scope, send: Send) -> None:
        listed = with_virtual(await (await self._upstreams.get()).models(), self._settings.names())
        await send_json(send, 200, one_model(listed, scope["path_params"]["id"]), {})

    async def _ready(self, scope: Scope, send: Send) -> None:
        try:
            await (await self._upstreams.get()).check()
        except Exception as error:
            problem = of_exception(error)
            raise ProxyError(status=503, message=f"not ready: {problem}", code="not_ready") from error
        await send_json(send, 200, {"status": "ready"}, {})

    # Parts of them

    async def _chosen(self, scope: Scope, body: Mapping[str, Any]) -> tuple[Choice, Upstream]:
        info: RequestInfo = scope["state"]["anabranch"]
        info.model, info.stream = str(body.get("model") or ""), body.get("stream") is True
        choice = choose(body, Headers(scope=scope).get(HEADER), self._settings)
        info.strategy = choice.name
        upstream = await self._upstreams.get(choice.backend)
        if not choice.plain:
            await upstream.model_names()  # so that whoever counts knows them
        elif SEPARATOR in info.model and not choice.altered:
            await self._refuse_misspelt(info.model, upstream)
        return choice, upstream

    async def _refuse_misspelt(self, model: str, upstream: Upstream) -> None:
        """A model of the server's with something behind it that is no strategy is an error worth a list."""
        bare, _, suffix = model.rpartition(SEPARATOR)
        names = await upstream.model_names()
        if bare in names and model not in names:
            raise unknown_strategy(suffix, self._settings)

    async def _through(
        self,
        scope: Scope,
        send: Send,
        upstream: Upstream,
        body: Mapping[str, Any],
        choice: Choice,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Pass a request on: its own bytes, unless something in it was for the proxy."""
        content: bytes = scope["state"]["body"]
        if choice.altered:
            kept = {name: value for name, value in body.items() if name != EXTENSION}
            if choice.model is not None:
                kept["model"] = choice.model
            else:
                kept.pop("model", None)
            content = json_bytes(kept)
        await self._relay(scope, send, upstream, content, extra)

    async def _instead(
        self, scope: Scope, send: Send, upstream: Upstream, body: Mapping[str, Any], choice: Choice, reason: str
    ) -> None:
        """What a strategy does not honour is decoded plainly by the model server itself, which honours it."""
        scope["state"]["anabranch"].strategy = "sequential"
        told = {"x-anabranch-strategy": "sequential", "x-anabranch-fell-back": reason}
        await self._through(scope, send, upstream, body, choice, told)

    async def _relay(
        self, scope: Scope, send: Send, upstream: Upstream, body: bytes, extra: Mapping[str, str] | None = None
    ) -> None:
        query = scope["query_string"].decode("latin-1")
        passing = Passing(
            method=scope["method"],
            path=_raw_path(scope).removeprefix(BASE) + (f"?{query}" if query else ""),
            headers=scope["headers"],
            body=body,
            extra=extra or {},
        )
        relay = await upstream.relay()
        try:
            async with self._deadline():
                _note_error(scope, await relay.serve(passing, send))
        except TimeoutError:
            problem = ProxyError(status=504, message=f"no whole answer within {self._settings.deadline_s:g} s")
            info: RequestInfo = scope["state"]["anabranch"]
            if not (info.status and info.stream):
                raise problem from None
            _note_error(scope, problem)
            await send({"type": "http.response.body", "body": error_event(problem), "more_body": False})

    def _runs(
        self,
        scope: Scope,
        upstream: Upstream,
        choice: Choice,
        messages: Sequence[Mapping[str, Any]],
        arguments: Any,
        strategy: Strategy,
        *,
        n: int,
    ) -> Runs:
        return Runs(
            upstream.orchestrator,
            messages,
            arguments,
            n=n,
            progress=choice.progress,
            request=scope["state"]["anabranch"],
            observers=self._observers,
        )

    async def _send_whole(self, scope: Scope, send: Send, runs: Runs, body: Mapping[str, Any]) -> None:
        _account(scope, runs)
        await send_json(send, 200, body, chat.answer_headers(runs))

    async def _send_stream(
        self,
        scope: Scope,
        send: Send,
        runs: Runs,
        strategy: Strategy,
        frames: Any,
        failed: Callable[[ProxyError], bytes] = error_event,
    ) -> None:
        def headers() -> Mapping[str, str]:
            return {"x-anabranch-strategy": strategy.name, "x-anabranch-run-id": ",".join(runs.run_ids)}

        _note_error(scope, await send_stream(send, frames, headers=headers, failed=failed))
        _account(scope, runs)

    def _deadline(self) -> AbstractAsyncContextManager[object]:
        """For what passes through; without a limit it costs nothing."""
        limit = self._settings.deadline_s
        return nullcontext() if limit is None else asyncio.timeout(limit)

    def _within_deadline(self, budget: Any) -> Any:
        """The budget, with the proxy's own deadline for a request."""
        limits = [limit for limit in (budget.deadline_s, self._settings.deadline_s) if limit is not None]
        return replace(budget, deadline_s=min(limits)) if limits else budget


def read_json(body: bytes) -> dict[str, Any]:
    """A request's JSON object. Raises ProxyError."""
    try:
        parsed = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise bad_request("the body must be a JSON object")
    return parsed


def refuse_unsendable(body: Mapping[str, Any]) -> None:
    """What JSON can say in ASCII only, or not at all, can be sent on in no call. Raises ProxyError."""
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise bad_request(f"the body cannot be sent on: {error}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""Made once: `json.loads` makes one for each call that has arguments."""


def _or_sequential(choice: Choice) -> Choice:
    """A server without an API of its own has plain requests decoded by the engine."""
    return replace(choice, name="sequential") if choice.name == PLAIN else choice


def _refuse_strategy(body: bytes, path: str, settings: Settings) -> None:
    """A strategy named where none applies is an error, not something to overlook."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return
    if isinstance(parsed, dict) and (
        EXTENSION in parsed or choose({"model": parsed.get("model")}, PLAIN, settings).altered
    ):
        raise bad_request(
            f"{path} passes through: strategies answer chat completions and responses", param="model"
        )


def _raw_path(scope: Scope) -> str:
    """The path as it was sent, not decoded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def _note_error(scope: Scope, problem: ProxyError | None) -> None:
    """An error in mid-stream is in no status."""
    if problem is not None:
        scope["state"]["anabranch"].error_code = problem.envelope()["error"].get("code") or "error"


def _account(scope: Scope, runs: Runs) -> None:
    info: RequestInfo = scope["state"]["anabranch"]
    usage = runs.usage
    info.branches, info.prompt, info.cached = usage.branches, usage.prompt, usage.cached
    info.completion, info.wasted = usage.completion, usage.wasted


async def _health(scope: Scope, send: Send) -> None:
    await send_json(send, 200, {"status": "ok"}, {})


async def _version(scope: Scope, send: Send) -> None:
    from anabranch import __version__

    await send_json(send, 200, {"name": "anabranch", "version": __version__}, {})


async def _openapi(scope: Scope, send: Send) -> None:
    from anabranch.serving.proxy.openapi import document

    await send_json(send, 200, document(), {})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        raise ProxyError(status=404, message=f"no such path: {scope['path']}", code="not_found")
