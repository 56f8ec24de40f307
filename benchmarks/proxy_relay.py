"""A bare relay: the least that Starlette and aiohttp need to pass a chat completion on. The yardstick for the proxy.

It checks nothing, notices nothing, and measures nothing; a client that goes away is none of its business.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


def relay(upstream: str) -> Starlette:
    """The application; `upstream` is the base of an API."""
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            sessions.append(session)
            yield

    async def complete(request: Request) -> Response:
        reply = await sessions[0].post(
            f"{upstream}/chat/completions",
            data=await request.body(),
            headers={"content-type": request.headers["content-type"]},
        )
        kind = reply.headers["content-type"]
        if not kind.startswith("text/event-stream"):
            return Response(await reply.read(), reply.status, media_type=kind)
        return StreamingResponse(reply.content.iter_any(), reply.status, media_type=kind)

    async def health(request: Request) -> Response:
        return JSONResponse({})

    routes = [Route("/v1/chat/completions", complete, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--upstream", required=True)
    options.add_argument("--port", type=int, required=True)
    chosen = options.parse_args()
    # With uvicorn's own access log, as it is by default: what is measured beside it logs its requests, too.
    uvicorn.run(relay(chosen.upstream), host="127.0.0.1", port=chosen.port)
