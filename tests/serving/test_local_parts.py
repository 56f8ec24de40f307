"""What the embedded backend makes of llama.cpp's events, without an engine: where ids are given and where not."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from anabranch.orchestrator.backend import Call, Delta
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import MalformedResponse, RequestRejected
from anabranch.orchestrator.sampling import Constraint
from anabranch.serving.backends.local.constraints import fields, is_kept
from anabranch.serving.backends.local.reply import Reader
from anabranch.serving.backends.local.session import tokens_after

LAST = {"stop": True, "tokens_evaluated": 9, "timings": {"cache_n": 8}, "stopping_word": ""}


def piece(text: str, token: int, number: int) -> dict[str, Any]:
    return {"content": text, "tokens": [token], "tokens_predicted": number, "stop": False}


def read(*events: dict[str, Any], stop: tuple[str, ...] = (), from_slot: tuple[int, ...] = ()) -> Reader:
    reader = Reader(Call(rid="0" * 32, branch=Branch.of("?"), stop=stop), model="m", computed_before=3)
    for event in events:
        reader.feed(event)
    if from_slot:
        reader.fill(from_slot)
    return reader


def end_of(reader: Reader, decoded: str | None = None) -> Delta:
    delta = reader.end(decoded)
    assert delta.end is not None
    assert delta.end.usage is not None
    return delta


def test_gaps_are_filled_from_the_slot() -> None:
    """Ids that the stream left out come from the slot; the last one, which the slot lacks, from the stream."""
    events = (piece("a", 1, 1), piece("語", 4, 4), LAST | {"stop_type": "limit", "tokens_predicted": 4})
    assert read(*events).gaps
    reader = read(*events, from_slot=(1, 2, 3))
    assert end_of(reader).token_ids == (1, 2, 3, 4)


def test_ids_that_contradict_the_stream_are_not_used() -> None:
    """Where the slot says something else than the stream there are no ids rather than wrong ones."""
    events = (piece("a", 1, 1), piece("語", 4, 4), LAST | {"stop_type": "limit", "tokens_predicted": 4})
    assert end_of(read(*events, from_slot=(9, 2, 3))).token_ids == ()


def test_half_a_character_at_the_cap_is_left_out() -> None:
    """Tokens of a character that the cap cut in half are counted, and are in neither text nor ids."""
    reader = read(piece("a", 1, 1), LAST | {"stop_type": "limit", "tokens_predicted": 3})
    delta = end_of(reader)
    assert (reader.text, delta.token_ids) == ("a", (1,))
    assert delta.end is not None
    assert delta.end.usage is not None
    assert delta.end.usage.completion == 3


def test_stop_string_that_does_not_fit_the_ids() -> None:
    """Where ids and text do not fit together at a stop string, the text and the stop string alone are given."""
    last = LAST | {"stop_type": "word", "tokens_predicted": 2, "stopping_word": "\n\n"}
    reader = read(piece("ab", 1, 1), piece("c", 2, 2), last, stop=("\n\n",))
    exact, odd = end_of(reader, "abc\n\nd"), end_of(reader, "x")
    assert exact.end is not None
    assert (exact.token_ids, exact.end.tail) == ((1, 2), "\n\nd")
    assert odd.end is not None
    assert (odd.token_ids, odd.end.tail, odd.end.matched) == ((), "\n\n", "\n\n")


def test_what_was_computed_for_the_siblings_is_the_leaders() -> None:
    """Tokens that a leader computed before its call are not counted as cached."""
    usage = end_of(read(LAST | {"stop_type": "eos", "tokens_predicted": 1})).end
    assert usage is not None
    assert usage.usage is not None
    assert (usage.usage.prompt, usage.usage.cached) == (9, 5)


def test_event_without_its_fields_is_malformed() -> None:
    """An event that lacks what every event has is an error of the server's, not of ours."""
    with pytest.raises(MalformedResponse, match="tokens_predicted"):
        read({"content": "a", "stop": False})


@pytest.mark.parametrize("header", [0, 3, 7])
def test_ids_are_found_in_a_slots_file(tmp_path: Path, header: int) -> None:
    """The written ids follow the prompt, whatever the header's size; an unknown layout gives none."""
    file = tmp_path / "slot.bin"
    file.write_bytes(struct.pack(f"={header + 6}i", *[77] * header, 1, 2, 3, 40, 50, 60) + b"state" * 999)
    assert tokens_after(file, (1, 2, 3), 2) == (40, 50)
    assert tokens_after(file, (1, 2, 3), 0) == ()
    assert tokens_after(file, (3, 2, 1), 2) == ()


def test_regex_becomes_one_line_of_grammar() -> None:
    """Slashes and line breaks of a regex are escaped, once."""
    regex = Constraint(kind="regex", source="a/b\\/c\n\\\\d")
    assert fields(regex)["grammar"] == "%llguidance {}\nstart: /a\\/b\\/c\\n\\\\d/"
    assert is_kept(Constraint(kind="regex", source="a+/"), "aa/")
    assert not is_kept(Constraint(kind="regex", source="a+/"), "aa")


def test_schema_asks_for_tight_json() -> None:
    """White space is bounded unless the schema says otherwise; what is no JSON is refused."""
    loose = Constraint(kind="json_schema", source='{"type":"array","x-guidance":{}}')
    assert fields(loose)["json_schema"] == {"type": "array", "x-guidance": {}}
    tight = fields(Constraint(kind="json_schema", source='{"type":"array"}'))["json_schema"]
    assert tight["x-guidance"]["whitespace_flexible"] is False
    with pytest.raises(RequestRejected, match="not JSON"):
        fields(Constraint(kind="json_schema", source="{"))
