"""Sequential relays one generation, as the caller asked for it."""

from __future__ import annotations

from anabranch.orchestrator.answer import Answer
from anabranch.orchestrator.orchestrator import Orchestrator
from anabranch.orchestrator.sampling import Sampling
from anabranch.serving.backends.scripted import Reply, ScriptedBackend
from anabranch.testing import run_virtual


def test_one_generation_is_relayed_as_it_is() -> None:
    """Messages, sampling, cap and stop strings go through unchanged; text, reasoning and finish reason come back."""
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Well,"},
    ]
    reply = Reply(chunks=(" hello", " there", " you"), reasoning=("hm",))
    backend = ScriptedBackend([reply])

    async def scenario() -> Answer:
        async with Orchestrator(backend) as orch:
            sampling = Sampling(temperature=0.2, seed=4)
            return await orch.ask(messages, sampling=sampling, max_tokens=2, stop=("END",))

    answer = run_virtual(scenario())
    assert (answer.text, answer.reasoning, answer.finish_reason) == (" hello there", "hm", "length")
    assert (answer.strategy, answer.active, answer.usage.branches) == ("sequential", True, 1)
    call = backend.calls[0].call
    assert [message.to_wire() for message in call.branch.messages] == messages[:2]
    assert (call.branch.text, call.stop, call.max_tokens) == ("Well,", ("END",), 2)
    assert call.sampling == Sampling(temperature=0.2, seed=4)
