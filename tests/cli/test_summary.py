"""The figures of a finished run in words."""

from __future__ import annotations

from anabranch.cli.summary import reported_line


def test_a_strategy_s_own_figures_stand_on_one_line() -> None:
    """Names read as words, parts stand behind a colon, and what there is none of is left out."""
    reported = {
        "acceptance": 0.83,
        "drafts": {"accepted": 5, "rejected": 1},
        "accept_length": None,
        "target_steps": 0,
        "reason": "two\nlines",
        "chosen": ["a", "b"],
        "nothing": {},
    }
    assert reported_line({"figures": reported}) == (
        "acceptance 0.83 · drafts: accepted 5, rejected 1 · target steps 0 · reason two lines · chosen: a, b"
    )
    assert reported_line({}) == ""
