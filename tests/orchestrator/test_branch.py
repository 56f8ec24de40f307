"""Branches: immutable, exact in tokens, and honest about where they came from."""

from __future__ import annotations

import pytest

from anabranch.orchestrator.branch import Branch, GenerationId, Message, Segment
from anabranch.orchestrator.errors import InvalidParameter
from anabranch.orchestrator.generation import Generation


def generation(
    id: int, source: Branch, text: str, *, tail: str = "", ids: tuple[int, ...] = (), span: int = 1
) -> Generation:
    return Generation(
        id=GenerationId(id),
        source=source,
        text=text,
        tail=tail,
        token_ids=ids,
        vocabulary="v" if ids else "",
        depth=source.depth + 1,
        span=source.span + span,
    )


def test_extend_keeps_the_stop_string_and_the_ids() -> None:
    """A continued branch holds exactly what the model wrote, the stop string included."""
    question = Branch.of("Q")
    step = generation(1, question, "first", tail="\n\n", ids=(7, 8))
    branch = question.extend(step)
    assert branch.segments == (Segment(text="first\n\n", token_ids=(7, 8), vocabulary="v"),)
    assert branch == step.branch


def test_extend_without_the_tail_drops_ids_that_would_not_match() -> None:
    """Ids are kept only where they decode to exactly the segment's text."""
    question = Branch.of("Q")
    cut = question.extend(generation(1, question, "first", tail="\n\n", ids=(7, 8)), tail=False)
    assert cut.segments == (Segment(text="first", vocabulary="v"),)


def test_a_user_turn_closes_the_assistants() -> None:
    """What the assistant had written becomes a message of the conversation."""
    branch = Branch.of("Q").say("A").user("And?")
    assert [(m.role, m.text) for m in branch.messages] == [("user", "Q"), ("assistant", "A"), ("user", "And?")]
    assert branch.segments == ()


def test_a_last_assistant_message_is_the_turn_to_go_on_with() -> None:
    """OpenAI messages that end with the assistant's are a prefill."""
    branch = Branch.of([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "The answer is"}])
    assert branch.text == "The answer is"
    assert len(branch.messages) == 1


def test_messages_keep_what_the_engine_does_not_know() -> None:
    """Parts and unknown fields go back to the wire as they came."""
    wire = {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}],
        "name": "x",
    }
    message = Message.from_wire(wire)
    assert message.to_wire() == wire
    assert message.text == "see"


@pytest.mark.parametrize("bad", ["", "  ", [], [{"content": "x"}], ["text"], [{"role": "user", "content": 3}]])
def test_bad_questions_are_refused_with_the_field(bad: object) -> None:
    """A question that is none is an error that names the field."""
    with pytest.raises(InvalidParameter, match=r"question|messages"):
        Branch.of(bad)  # type: ignore[arg-type]


def test_join_puts_what_each_added_behind_the_shared_prefix() -> None:
    """A join is the prefix once, then each branch's own part, in the order given; it depends on all."""
    fork = Branch.of("Q").say("outline\n")
    first, second = (generation(i, fork.say(f"{i}:"), f" text{i}", span=i * 10) for i in (1, 2))
    joined = Branch.join([second.branch, first.branch])
    assert joined.text == "outline\n2: text21: text1"
    assert joined.parents == (2, 1)
    assert (joined.depth, joined.span) == (1, 20)


def test_join_refuses_other_conversations() -> None:
    """Branches of different conversations have no common prefix to join behind."""
    with pytest.raises(InvalidParameter, match="one conversation"):
        Branch.join([Branch.of("a"), Branch.of("b")])
    with pytest.raises(InvalidParameter, match="nothing to join"):
        Branch.join([])


def test_after_makes_dependent_without_text() -> None:
    """A prompt that quotes a generation depends on it, though its text is elsewhere."""
    question = Branch.of("Q")
    outline = generation(1, question, "1. a", span=5)
    point = question.after(outline).user("expand a")
    assert (point.parents, point.depth, point.span) == ((1,), 1, 5)
    assert question.parents == ()


def test_threads_that_say_the_same_stay_two() -> None:
    """A join goes by where a segment comes from, not by what it says."""
    fork = Branch.of("Q").say("outline\n")
    twins = [generation(i, fork, "same\n") for i in (1, 2)]
    assert Branch.join([twin.branch for twin in twins]).text == "outline\nsame\nsame\n"


def test_what_was_written_since_a_branch_leaves_the_prefill_out() -> None:
    """Only a branch that continues the other one has a since."""
    start = Branch.of("Q").say("Begun: ")
    assert generation(1, start, "one", tail="\n").branch.say("two").since(start) == "one\ntwo"
    with pytest.raises(InvalidParameter, match="does not continue"):
        Branch.of("Q").say("Begun: ").since(start)
