"""Event streams: from bytes, cut anywhere, to the data of events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.serving.backends.sse import Events

DATA = ['{"text": "a b"}', '{"text": "ü 漢 😀"}', "[DONE]"]


def stream(line_end: str, *, space: str = " ") -> bytes:
    """The events, with what else servers put between them."""
    noise = [": a comment", "", "event: message", f"id: 7{line_end}retry: 10"]
    events = [
        f"{before}{line_end if before else ''}data:{space}{data}"
        for before, data in zip(noise, DATA, strict=False)
    ]
    return "".join(event + 2 * line_end for event in events).encode()


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("space", ["", " "])
@given(cuts=st.sets(st.integers(min_value=0, max_value=140)))
def test_wherever_it_is_cut(line_end: str, space: str, cuts: set[int]) -> None:
    """Whatever the line ends, and wherever the pieces end, the events are the same."""
    whole = stream(line_end, space=space)
    places = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]
    events = Events()
    found = [data for start, end in itertools.pairwise(places) for data in events.feed(whole[start:end])]
    assert [data.decode() for data in (*found, *events.finish())] == DATA


def test_data_of_several_lines_is_one() -> None:
    """Its lines stay lines."""
    assert Events().feed(b"data: a\ndata: b\n\n") == [b"a\nb"]


def test_a_last_event_without_its_blank_line_counts() -> None:
    """Not before the stream ends, and once."""
    events = Events()
    assert events.feed(b"data: a\n\ndata: b") == [b"a"]
    assert events.finish() == [b"b"]
    assert events.finish() == []


def test_events_without_data_are_passed_over() -> None:
    """Comments that keep a connection alive, and empty events, are nothing."""
    assert Events().feed(b": keep-alive\n\n\n\nevent: ping\n\ndata:\n\n") == []
