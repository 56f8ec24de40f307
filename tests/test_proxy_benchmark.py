"""The parts of the proxy's benchmark: what it sends, reads and counts. Its figures are for people to judge."""

from __future__ import annotations

import json
import sys

import proxy
import proxy_fan
import proxy_load
import proxy_servers
import proxy_stub
import pytest

from anabranch import Orchestrator

if not sys.platform.startswith("linux"):
    pytest.skip("it reads /proc", allow_module_level=True)


def asked(path: bytes, **body: object) -> bytes:
    return b"".join(proxy_stub.reply(path, json.dumps(body).encode()))


@pytest.mark.parametrize("stream", [False, True])
def test_the_stub_answers_with_as_many_words_as_are_asked_for(stream: bool) -> None:
    """A whole completion, or one event for each word, which end where the client looks for it."""
    reply = asked(b"/v1/chat/completions", stream=stream, max_tokens=3)
    proxy_load.check(reply)
    assert proxy_load.length(reply) == len(reply)
    assert proxy_load.length(reply[:-1]) is None
    assert reply.count(proxy_stub.WORD.encode()) == 3
    assert reply.count(b"data: {") == (4 if stream else 0)


def test_errors_are_no_good_replies() -> None:
    """A refusal, an error with status 200, and a stream without an end are not counted as answers."""
    for reply in (
        asked(b"/nowhere"),
        b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"error":{}}',
        asked(b"/v1/chat/completions", stream=True).replace(b"[DONE]", b""),
    ):
        with pytest.raises(proxy_load.BadReply):
            proxy_load.check(reply)


async def test_ours_run_on_the_stub_and_the_load_sees_every_reply() -> None:
    """The stub is SGLang to the engine and OpenAI to a client, and a load is as many requests as it should be."""
    async with proxy_servers.stub() as server:
        async with Orchestrator(f"sglang://127.0.0.1:{server.port}") as orch:
            answer = await orch.ask("question", strategy=proxy_fan.Fan(branches=3, tokens=4))
        assert answer.text == proxy_stub.WORD * 4
        assert answer.usage.branches == 3
        content = proxy_load.request(server.port, {"max_tokens": 5, "stream": True})
        one = len(asked(b"/v1/chat/completions", max_tokens=5, stream=True))
        assert await proxy_load.send(server.port, content, total=7, inflight=3) == 7 * one
        assert server.memory() > 1


def test_ticks_are_read_past_a_name_with_brackets() -> None:
    """A process may call itself anything."""
    assert proxy_servers.ticks("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15") == 42


def test_a_stream_is_split_into_itself_and_its_pieces() -> None:
    """Two lengths tell what a piece costs, and what is left without any."""
    found = proxy.Found()
    for pieces in (proxy_stub.PIECES, proxy.MANY_PIECES):
        found.least("it", proxy.Job(inflight=1, stream=True, pieces=pieces), 2.0 + 0.01 * pieces)
    assert found.split("it", 1) == pytest.approx((2.0, 0.01))


def test_the_least_count_stays() -> None:
    """Other load only adds to a count."""
    found, job = proxy.Found(), proxy.Job(inflight=1)
    for cost in (2.0, 1.0, 3.0):
        found.least("it", job, cost)
    assert found.cpu_ms["it"] == {job: 1.0}
