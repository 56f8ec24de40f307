"""The SDK's face: names and parameters, streams, and errors that name the field."""

from __future__ import annotations

import inspect

import pytest

from anabranch import Orchestrator, Run
from anabranch.orchestrator.errors import InvalidParameter, RequestRejected, UnknownName
from anabranch.orchestrator.orchestrator import AskArguments, default_backend_url
from anabranch.orchestrator.registry import build_strategy, open_backend
from anabranch.testing import Reply, ScriptedBackend, run_virtual


class Echo:
    """Relays one generation."""

    name = "echo"

    async def __call__(self, run: Run) -> None:
        run.finish(await run.relay(run.generate(run.question, max_tokens=run.max_tokens, stop=run.stop)))


def test_a_stream_gives_events_and_then_the_answer() -> None:
    """The answer's pieces come as they are written; the answer is there at the end."""

    async def scenario() -> None:
        async with Orchestrator(ScriptedBackend([Reply.of("one two", chunk_s=1)])) as orch:
            async with orch.stream("Q", strategy=Echo()) as stream:
                with pytest.raises(RuntimeError, match="ended"):
                    _ = stream.answer
                texts = [event.text async for event in stream if event.type == "answer_delta"]
            assert texts == ["one", " two"]
            assert stream.answer.text == "one two"

    run_virtual(scenario())


def test_a_failed_stream_raises_its_error_out_of_the_iteration() -> None:
    """A stream does not just end when the run has failed."""

    async def scenario() -> None:
        backend = ScriptedBackend([Reply.failing(RequestRejected("no"))])
        async with Orchestrator(backend) as orch, orch.stream("Q", strategy=Echo()) as stream:
            with pytest.raises(RequestRejected, match="no"):
                async for _ in stream:
                    pass

    run_virtual(scenario())


def test_a_stream_must_be_entered() -> None:
    """Without `async with` nobody would stop the run; the error says what to write."""

    async def scenario() -> None:
        async with Orchestrator(ScriptedBackend([])) as orch:
            with pytest.raises(RuntimeError, match="async with"):
                async for _ in orch.stream("Q"):
                    pass

    run_virtual(scenario())


def test_caps_and_stops_reach_the_final_answer() -> None:
    """A cut answer says so."""

    async def scenario() -> None:
        backend = ScriptedBackend(lambda call: Reply.of("a b c d"))
        async with Orchestrator(backend) as orch:
            answer = await orch.ask("Q", strategy=Echo(), max_tokens=2, stop=["x"])
        assert (answer.text, answer.finish_reason) == ("a b", "length")
        assert backend.calls[0].call.stop == ("x",)

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"max_tokens": 0}, "max_tokens"), ({"stop": "text"}, "stop"), ({"params": {"x": 1}}, "params")],
)
def test_bad_arguments_are_refused_with_the_field(arguments: dict[str, object], field: str) -> None:
    """Before the server is asked anything."""

    async def scenario() -> None:
        backend = ScriptedBackend([])
        async with Orchestrator(backend) as orch:
            with pytest.raises(InvalidParameter, match=field):
                await orch.ask("Q", strategy=Echo(), **arguments)  # type: ignore[arg-type]
        assert backend.calls == []

    run_virtual(scenario())


def test_unknown_names_list_the_known_ones() -> None:
    """Strategies, backends and URLs without a scheme."""
    with pytest.raises(UnknownName, match=r"unknown strategy 'skeletn'; known: .*sequential"):
        build_strategy("skeletn")
    with pytest.raises(UnknownName, match=r"unknown backend 'gopher'; known: .*sglang"):
        open_backend("gopher://x")
    with pytest.raises(InvalidParameter, match="no scheme"):
        open_backend("localhost")


def test_unknown_and_bad_parameters_are_refused_with_the_known_ones() -> None:
    """The error names the parameter and lists those that the strategy has."""
    with pytest.raises(InvalidParameter, match=r"skeleton.max_pionts.*parameters of skeleton: .*max_points"):
        build_strategy("skeleton", {"max_pionts": 3})
    with pytest.raises(InvalidParameter, match=r"skeleton.max_points"):
        build_strategy("skeleton", {"max_points": "many"})


def test_the_default_backend_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours first, then OpenAI's, then the embedded model."""
    monkeypatch.delenv("ANABRANCH_BACKEND", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert default_backend_url() == "local:"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h/v1")
    assert default_backend_url() == "http://h/v1"
    monkeypatch.setenv("ANABRANCH_BACKEND", "sglang://h:1")
    assert default_backend_url() == "sglang://h:1"


def test_one_server_has_one_lane_whatever_roles_it_plays() -> None:
    """Limits are kept for each server, not for each role."""
    orch = Orchestrator("scripted:#big", roles={"draft": "scripted:#small", "judge": "scripted:"})
    assert len(orch.lanes) == 1


def test_stream_takes_the_same_arguments_as_ask() -> None:
    """The list of arguments that type checkers see is the real one."""
    parameters = inspect.signature(Orchestrator.ask).parameters
    assert set(AskArguments.__annotations__) == set(parameters) - {"self", "question"}
