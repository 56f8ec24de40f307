"""Best-of-N on scripted models: how many traces there are, which are stopped, what is answered, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from anabranch import Answer, Budget, Orchestrator, RetryPolicy, Sampling
from anabranch.answers import Equivalence
from anabranch.orchestrator.backend import Call, TokenLogprob
from anabranch.orchestrator.errors import (
    BackendUnavailable,
    MissingExtra,
    TooFewSucceeded,
    UnsupportedCapability,
)
from anabranch.serving.backends.scripted import DEFAULT_CAPABILITIES
from anabranch.strategies.best_of_n import BestOfN, tracing
from anabranch.testing import Reply, ScriptedBackend, run_virtual

DOWN = BackendUnavailable("down", retryable=False)


def says(answer: object, *, after_s: float = 1.0, words: int = 3) -> Reply:
    return Reply.of(f"{'so ' * words}#### {answer}", delay_s=after_s)


def run(
    replies: Sequence[Reply] | Callable[[Call], Reply],
    *,
    scorer: Callable[[Call], Reply] | None = None,
    logprobs: bool = True,
    sampling: Sampling | None = None,
    budget: Budget | None = None,
    max_tokens: int | None = None,
    **params: Any,
) -> tuple[Answer, ScriptedBackend]:
    """An answer, and the model that gave it; nothing runs any more."""
    capabilities = DEFAULT_CAPABILITIES if logprobs else replace(DEFAULT_CAPABILITIES, top_logprobs=0)
    backend = ScriptedBackend(replies, capabilities=capabilities)
    roles = {} if scorer is None else {"scorer": ScriptedBackend(scorer, name="scorer")}

    async def ask() -> Answer:
        async with Orchestrator(backend, roles=roles, retry=RetryPolicy(attempts=1)) as orch:
            return await orch.ask(
                "question",
                strategy=BestOfN(**params),
                sampling=sampling,
                budget=budget,
                max_tokens=max_tokens,
            )

    answer = run_virtual(ask())
    assert backend.running == 0
    return answer, backend


def traces(answer: Answer) -> Mapping[str, Any]:
    found = answer.figures["traces"]
    assert isinstance(found, Mapping)
    return {name: count for name, count in found.items() if count}


def test_four_equal_answers_are_enough() -> None:
    """Adaptive consistency in waves of four: the fifth of eight is never asked for."""
    answer, backend = run([says(7)] * 8)
    assert len(backend.calls) == 4
    assert answer.text.endswith("#### 7")
    assert traces(answer) == {"asked": 4, "voted": 4}
    assert answer.figures["shares"] == {"7": 1.0}
    assert answer.timing.wall_s == pytest.approx(1.0)
    assert answer.usage.wasted == 0


def test_a_divided_vote_goes_on_to_the_end() -> None:
    """The majority of eight; equal values are one answer."""
    answers = [7, 8, "7.0", 9, 8, 7, 8, "7"]
    answer, backend = run([says(each) for each in answers])
    assert len(backend.calls) == 8
    assert answer.figures["answer"] == "7"
    assert answer.figures["shares"] == {"7": 0.5, "8": 0.375, "9": 0.125}


def test_traces_run_side_by_side_from_one_prefix() -> None:
    """Eight of a fixed number take the time of one, and each has a seed of its own."""
    answer, backend = run([says(1)] * 8, stop="fixed", prune=(), sampling=Sampling(temperature=0.8, seed=5))
    assert backend.most_running == 8
    assert answer.timing.wall_s == pytest.approx(1.0)
    assert len({log.call.sampling.seed for log in backend.calls}) == 8
    first = backend.calls[0].call.branch
    assert all(log.call.branch == first for log in backend.calls)


def test_a_settled_vote_stops_the_rest_on_the_server() -> None:
    """Five of eight agree: the three that still run are closed, and what they wrote is wasted."""
    slow = Reply.of("so so so #### 9", delay_s=0.5, chunk_s=10)
    answer, backend = run([says(1)] * 5 + [slow] * 3, stop="fixed")
    assert [log.state for log in backend.calls] == ["done"] * 5 + ["closed"] * 3
    assert traces(answer) == {"asked": 8, "voted": 5, "pruned": 3}
    assert answer.usage.wasted == 3
    assert answer.timing.wall_s == pytest.approx(1.0)


def test_a_vote_that_could_still_grow_is_not_settled() -> None:
    """With adaptive stopping, a leader of two out of the first wave stops nobody, since more may come."""
    replies = [says(1), says(1), says(2, after_s=3), says(2, after_s=3)] + [says(2)] * 4
    answer, _ = run(replies)
    assert answer.figures["answer"] == "2"
    assert "pruned" not in traces(answer)


@pytest.mark.parametrize("where", ["chunks", "reasoning"])
def test_a_looping_trace_is_stopped(where: str) -> None:
    """It would never end by itself; a model's reasoning is looked at as well as its answer."""
    loop = Reply(**{where: ("wait, let me check that again. ",) * 5000}, chunk_s=0.01)  # type: ignore[arg-type]
    answer, backend = run([says(1), loop, says(1), says(1)], n=4, prune=("loops",))
    assert backend.calls[1].state == "closed"
    assert answer.usage.wasted < 1000
    assert traces(answer) == {"asked": 4, "voted": 3, "pruned": 1}


def sure(answer: object, *levels: float) -> Reply:
    """A word for each level of confidence, then the answer."""
    logprobs = tuple(TokenLogprob(token="w", logprob=-0.1, top=(("w", -level),)) for level in levels)
    words = tuple("w " for _ in levels)
    return Reply(chunks=(*words, f"#### {answer}"), delay_s=1.0, chunk_s=0.1, logprobs=logprobs)


def test_an_unsure_trace_is_stopped_after_the_warm_up() -> None:
    """Its group falls below what the warm-up traces never fell below."""
    warm = [sure(1, *[5.0] * 40)] * 2
    later = [sure(1, *[6.0] * 40), sure(2, *[6.0] * 20, *[1.0] * 80)]
    answer, backend = run(
        [*warm, *later],
        n=4,
        wave=2,
        certainty=0.99,
        prune=("confidence",),
        warm_up=2,
        window=8,
        keep_confident=1.0,
    )
    assert backend.calls[3].state == "closed"
    assert traces(answer) == {"asked": 4, "voted": 3, "pruned": 1}
    assert answer.figures["confidences"] == "streamed log-probabilities"


def test_sure_traces_outvote_unsure_ones() -> None:
    """Two unsure votes weigh less than one sure one."""
    replies = [sure(1, 2.0, 2.0), sure(2, 9.0, 9.0), sure(1, 2.0, 2.0)]
    answer, _ = run(replies, n=3, stop="fixed", vote="mean")
    assert answer.figures["answer"] == "2"


@pytest.mark.parametrize("lacking", ["said", "silent"])
def test_without_log_probabilities_votes_count_alike_and_it_is_said(lacking: str) -> None:
    """Whether the server says that it has none, or sends none though asked."""
    answer, backend = run(
        [says(1), says(2), says(1)], n=3, stop="fixed", vote="mean", logprobs=lacking == "silent"
    )
    assert answer.figures["answer"] == "1"
    assert any("no log-probabilities" in each or "count alike" in each for each in answer.warnings)
    assert {log.call.top_logprobs for log in backend.calls} == {20 if lacking == "silent" else 0}


def reward(call: Call) -> Reply:
    return Reply(measured=(3.0 if "2" in call.branch.text else -1.0,))


@pytest.mark.parametrize("vote", ["score", "best_score"])
def test_a_reward_model_decides(vote: str) -> None:
    """One trace that it values outweighs two."""
    answer, _ = run([says(1), says(2), says(1)], n=3, stop="fixed", vote=vote, scorer=reward)
    assert answer.text.endswith("#### 2")


def test_without_a_reward_model_it_is_refused_before_the_first_token() -> None:
    """The target's server measures no rewards."""
    backend = ScriptedBackend([], capabilities=replace(DEFAULT_CAPABILITIES, measures=frozenset()))

    async def ask() -> None:
        async with Orchestrator(backend) as orch:
            await orch.ask("question", strategy=BestOfN(vote="score"))

    with pytest.raises(UnsupportedCapability, match="reward"):
        run_virtual(ask())
    assert not backend.calls


def test_a_third_of_the_traces_fail() -> None:
    """The others vote; each failure is a warning."""
    replies = [Reply.failing(DOWN, after="so") if number % 3 == 0 else says(4) for number in range(6)]
    answer, _ = run(replies, n=6, stop="fixed", prune=())
    assert answer.figures["answer"] == "4"
    assert traces(answer) == {"asked": 6, "voted": 4, "failed": 2}
    assert len(answer.warnings) == 2


def test_all_fail() -> None:
    """That is an error, with the first failure in it, and no answer."""
    with pytest.raises(TooFewSucceeded, match="down"):
        run([Reply.failing(DOWN)] * 4, n=4)


def test_none_parses() -> None:
    """The first complete trace is the answer, with a warning."""
    answer, _ = run([Reply.of("I cannot tell", delay_s=4 - n) for n in range(4)], n=4)
    assert answer.text == "I cannot tell"
    assert any("none was voted for" in warning for warning in answer.warnings)
    assert traces(answer) == {"asked": 4, "no answer": 4}


def test_a_trace_that_its_cap_cut_is_no_vote() -> None:
    """Even where a number could be read from it."""
    answer, _ = run([says(9, words=1), *[says(7, words=30)] * 2], n=3, stop="fixed", max_tokens=10)
    assert answer.figures["answer"] == "9"
    assert traces(answer) == {"asked": 3, "voted": 1, "cut short": 2}


def test_a_deadline_in_the_middle_gives_the_vote_so_far() -> None:
    """With what had ended by then; nothing runs on."""
    replies = [says(3, after_s=1), says(3, after_s=2), says(4, after_s=1.5), says(5, after_s=90)]
    answer, backend = run(replies, n=4, stop="fixed", budget=Budget(deadline_s=10))
    assert answer.text.endswith("#### 3")
    assert answer.finish_reason == "deadline"
    assert backend.calls[3].state == "closed"
    assert answer.figures["shares"] == {"3": 0.6667, "4": 0.3333}


def test_a_token_budget_gives_the_vote_so_far() -> None:
    """What is not paid for is not asked for."""
    answer, _ = run([says(3)] * 64, n=64, wave=2, certainty=0.999999, budget=Budget(tokens=30))
    assert answer.text.endswith("#### 3")
    assert answer.usage.work <= 30


def test_a_greedy_request_is_sampled_and_told() -> None:
    """At temperature 0 the traces would all be one; a request's own temperature is kept."""
    greedy, backend = run([says(1)] * 4, sampling=Sampling(temperature=0))
    assert {log.call.sampling.temperature for log in backend.calls} == {0.7}
    assert any("temperature 0" in warning for warning in greedy.warnings)
    warm, backend = run([says(1)] * 4, sampling=Sampling(temperature=1.2))
    assert {log.call.sampling.temperature for log in backend.calls} == {1.2}
    assert not warm.warnings


def test_traces_that_begin_alike_are_stopped() -> None:
    """Four that begin with the same words are one cluster: one of them is finished, or a few, and the rest is not."""
    words = "We compute 3 * 4 = 12 and then 12 + 5 = 17, so that the sum is 17. " * 12
    replies = [Reply.of(f"{words} so far, so good {'and on ' * 40} #### 17", chunk_s=0.1) for _ in range(16)]
    answer, _ = run(replies, n=16, stop="fixed", prune=("redundant",), prefix=600)
    found = traces(answer)
    assert found["pruned"] == 16 - found["voted"] > 0
    assert answer.figures["answer"] == "17"
    assert answer.usage.wasted > 0


def test_cancelling_the_request_stops_all_traces() -> None:
    """On the server too."""
    backend = ScriptedBackend([Reply.hanging("so")] * 8)

    async def ask() -> None:
        async with Orchestrator(backend) as orch:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(orch.ask("q", strategy=BestOfN(stop="fixed")), 5)
            assert backend.running == 0

    run_virtual(ask())
    assert {log.state for log in backend.calls} == {"closed"}


def test_a_thousand_traces() -> None:
    """They are counted, and nothing is lost."""
    answer, backend = run([says(number % 3) for number in range(1000)], n=1000, stop="fixed", prune=())
    assert len(backend.calls) == 1000
    assert traces(answer) == {"asked": 1000, "voted": 1000}
    assert answer.figures["answer"] == "0"


def test_the_processes_that_compare_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the answer, and with a failure."""
    made: list[Counted] = []

    class Counted(Equivalence):
        closed = 0

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            self.closed += 1
            super().close()

    monkeypatch.setattr(tracing, "Equivalence", Counted)
    run([says(1)] * 4, n=4)
    with pytest.raises(TooFewSucceeded):
        run([Reply.failing(DOWN)] * 4, n=4)
    assert [each.closed for each in made] == [1, 1]


def test_without_math_verify_values_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer says so."""

    def missing() -> None:
        raise MissingExtra("comparing mathematical answers", "answers")

    monkeypatch.setattr(tracing, "Equivalence", missing)
    answer, _ = run([says("1,000"), says("1000.0"), says("1/2"), says("0.5")], n=4, stop="fixed")
    assert answer.figures["shares"] == {"1000": 0.5, "1/2": 0.25, "0.5": 0.25}
    assert any("anabranch[answers]" in warning for warning in answer.warnings)


@pytest.mark.parametrize(
    "params", [{"n": 0}, {"certainty": 1.0}, {"stop": "never"}, {"prune": ("all",)}, {"traces": 3}]
)
def test_bad_parameters_are_refused(params: dict[str, Any]) -> None:
    """By their names."""
    with pytest.raises(ValidationError, match=next(iter(params))):
        BestOfN(**params)
