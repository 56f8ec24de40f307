"""How SGLang is started for a purpose: named sets of flags. Checked against SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.orchestrator.errors import UnknownName

Flags = Mapping[str, str]
"""SGLang's flags with their values; switches have none, an empty text."""

_REPORTS: Flags = {"--enable-cache-report": "", "--enable-metrics": "", "--incremental-streaming-output": ""}
"""Figures that answers carry; and streams that send what is new, not all there is so far, with every chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named set of flags.

    Attributes:
        about: one line for people.
        flags: what it sets; prefix caching is SGLang's default and stays on.
        speculative: whether token-level speculative decoding can be added.
    """

    name: str
    about: str
    flags: Flags
    speculative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A speculative algorithm: its flags, and whether it needs a draft model."""

    about: str
    flags: Flags
    draft_model: bool


_DRAFTED: Flags = {
    "--speculative-num-steps": "3",
    "--speculative-eagle-topk": "1",
    "--speculative-num-draft-tokens": "4",
    "--mem-fraction-static": "0.75",
}
"""A chain of three drafted tokens, which is what SGLang itself chooses for most models
(arg_groups/speculative_hook.py); and room for the draft model."""

PROFILES: Mapping[str, Profile] = {
    "gpu": Profile(
        name="gpu",
        about="one GPU, or several with --tp",
        # lpm: of the waiting calls, those with the longest cached prefix go first.
        flags={"--mem-fraction-static": "0.85", "--schedule-policy": "lpm", **_REPORTS},
        speculative=True,
    ),
    "cpu": Profile(
        name="cpu",
        about="a small real model on any Linux machine, for trying things out and for tests",
        flags={
            "--device": "cpu",
            "--attention-backend": "torch_native",
            "--sampling-backend": "pytorch",
            "--disable-overlap-schedule": "",
            "--dtype": "float32",
            "--mem-fraction-static": "0.3",
            "--max-total-tokens": "16384",
            # Its scheduler otherwise keeps a core busy also when there is nothing to do.
            "--sleep-on-idle": "",
            **_REPORTS,
        },
    ),
}

SPECULATIONS: Mapping[str, Speculation] = {
    "EAGLE3": Speculation(about="a trained draft head", flags=_DRAFTED, draft_model=True),
    "STANDALONE": Speculation(about="a smaller model of the same vocabulary", flags=_DRAFTED, draft_model=True),
    "NGRAM": Speculation(
        about="what was written before", flags={"--speculative-num-draft-tokens": "12"}, draft_model=False
    ),
}


def profile_named(name: str) -> Profile:
    """The profile. Raises UnknownName where there is none."""
    if name not in PROFILES:
        raise UnknownName("profile", name, tuple(PROFILES))
    return PROFILES[name]


def speculation_named(name: str) -> Speculation:
    """The speculative algorithm, in any case of letters. Raises UnknownName where there is none."""
    if name.upper() not in SPECULATIONS:
        raise UnknownName("speculative algorithm", name, tuple(SPECULATIONS))
    return SPECULATIONS[name.upper()]
