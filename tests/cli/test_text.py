"""Text for people."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from anabranch.cli.scale import tick_labels, ticks
from anabranch.cli.text import clip, count, harmless, one_line, seconds, wrap


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\rb\x08c\x00", "a␍b␈c␀"),
        ("\x9b2J\x7f", "\ufffd2J\ufffd"),
        ("abc\u202edef\u2066", "abc\ufffddef\ufffd"),
        ("line\r\nline\n\ttab", "line\nline\n\ttab"),
        ("ünï 漢字 👍🏽 e\u0301", "ünï 漢字 👍🏽 e\u0301"),
        ("\ud800\uffff", "\ufffd\ufffd"),
    ],
)
def test_control_characters_become_visible(raw: str, shown: str) -> None:
    """Nothing that a terminal would obey is left; what people write stays as it is."""
    assert harmless(raw) == shown


def test_one_line() -> None:
    """Line ends and runs of white space become single spaces."""
    assert one_line(" a\n\n b\t c\r\n") == "a b c"


@pytest.mark.parametrize("width", range(14))
def test_clipped_text_fits(width: int) -> None:
    """Wide characters are never cut in half, and the result is never too wide."""
    for text in ("plain text", "漢字と仮名", "mixed 漢字 text", "👍👍👍👍👍👍"):
        assert cell_len(clip(text, width)) <= width
        assert clip(text, 100) == text


def test_wrapping_keeps_whole_words_and_says_when_something_is_missing() -> None:
    """Lines break between words where there are any; the last line shows that there was more."""
    assert wrap("the quick brown fox jumps", 11, 3) == ["the quick", "brown fox", "jumps"]
    assert wrap("the quick brown fox jumps", 11, 2) == ["the quick", "brown fox…"]
    assert wrap("漢" * 12, 10, 2) == ["漢" * 5, "漢" * 4 + "…"]
    assert wrap("", 10, 2) == []


def test_durations() -> None:
    """Durations have the unit that fits."""
    assert [seconds(t) for t in (0.0, 0.0844, 0.9996, 4.25, 59.94, 185.2)] == [
        "0 ms",
        "84 ms",
        "1.0 s",
        "4.2 s",
        "59.9 s",
        "3 min 05 s",
    ]


def test_counts() -> None:
    """A number and its noun agree."""
    assert [count(1, "branch"), count(1204, "branch"), count(0, "token")] == [
        "1 branch",
        "1,204 branches",
        "0 tokens",
    ]


@pytest.mark.parametrize("total", [1e-4, 0.02, 0.999, 1.0, 3.55, 10.0, 59.0, 7200.0])
@pytest.mark.parametrize("most", [1, 3, 10])
def test_ticks_are_few_even_and_cover_the_axis(total: float, most: int) -> None:
    """An axis has at most so many steps, all alike, and its last tick is not beyond its end."""
    times = ticks(total, most)
    assert 1 <= len(times) <= most + 1
    assert times[0] == 0
    assert times[-1] <= total * 1.000001
    labels = tick_labels(times)
    assert len(set(labels)) == len(times)


def test_an_axis_of_no_length() -> None:
    """A run that took no time has one tick."""
    assert ticks(0.0, 5) == [0.0]
    assert tick_labels([0.0]) == ["0 ms"]
