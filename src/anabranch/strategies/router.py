"""Rules that tell which questions a skeleton does not suit, and why: a pure function, no model is asked.

A skeleton suits answers that are lists of points which stand for themselves. The rules look for signs of the
opposite: one number, one fact, a proof, a program, a letter, a role to play, a process whose steps follow from one
another. They are English, besides code and formulas; a question in which nothing is recognised is let pass. They
lean to the safe side, because a wrong skeleton costs more than a missed one (Skeleton-of-Thought, section 4).
On the paper's labels of Vicuna-80, 35 of 37 suitable questions pass and none of 43 others; of the problems of GSM8K
and MATH-500, 1 and 3 in 100 pass. The rules were written with all of these in view: expect less on other questions.
"""

from __future__ import annotations

import re
from typing import NamedTuple


def unsuitable(question: str, *, chains: bool = False) -> str | None:
    """Why a skeleton does not suit this question, in words; None when nothing speaks against it.

    Args:
        chains: points may build on each other, so that a process is no obstacle.
    """
    text = question.strip()
    if len(text) > 2 * _LOOK:  # What is asked stands at one of the ends; between them is material.
        text = f"{text[:_LOOK]}\n{text[-_LOOK:]}"
    rules = _RULES if chains else (*_RULES, _CHAIN)
    return next((rule.reason for rule in rules if rule.pattern.search(text)), None)


_LOOK = 2_000
"""Characters at either end of a long question that are looked at."""


class _Rule(NamedTuple):
    reason: str
    pattern: re.Pattern[str]


def _rule(reason: str, *signs: str) -> _Rule:
    return _Rule(reason, re.compile("|".join(signs), re.IGNORECASE | re.MULTILINE))


def _any(*words: str) -> str:
    return f"(?:{'|'.join(words)})"


_START = r"(?:^|[.!?:]\s+)"
_POLITE = _any(
    r"please", r"kindly", r"(?:can|could|would|will) you", r"help me", r"i (?:want|need)(?: you)? to"
)
_ASK = rf"{_START}(?:{_POLITE}\s+)*"
"""Where a request's verb may stand: first in a sentence, after what people say to be polite."""
_NEAR = r"\b[^.?!\n]{0,60}\b"
_MAKE = _any(
    *(
        "write",
        "draft",
        "compose",
        "create",
        "develop",
        "implement",
        "build",
        "code",
        "make",
        "design",
        "generate",
    ),
    *("give me", "pen", "prepare", "structure", "use"),
)
_PROGRAM = _any(
    *(
        "programs?",
        "functions?",
        "methods?",
        "class(?:es)?",
        "code",
        "algorithms?",
        "reg(?:ular )?ex(?:pression)?s?",
    ),
    *(
        "quer(?:y|ies)",
        "data structures?",
        "unit tests?",
        "parsers?",
        "snippets?",
        "(?:shell|bash|python) scripts?",
    ),
)
_LANGUAGE = _any(
    *(
        "python",
        "java",
        "javascript",
        "typescript",
        r"c\+\+",
        "c#",
        "rust",
        "golang",
        "sql",
        "bash",
        "ruby",
        "php",
    ),
    *("haskell", "kotlin", "swift", "matlab"),
)
_PIECE = _any(
    *(
        "e-?mails?",
        "letters?",
        "poems?",
        "haikus?",
        "sonnets?",
        "limericks?",
        "lyrics",
        "songs?",
        "stor(?:y|ies)",
    ),
    *(
        "novels?",
        "fables?",
        "speech(?:es)?",
        "toasts?",
        "scripts?",
        "scenes?",
        "dialogues?",
        "monologues?",
        "essays?",
    ),
    *(
        "posts?",
        "articles?",
        "reviews?",
        "announcements?",
        "press releases?",
        "tweets?",
        "captions?",
        "slogans?",
    ),
    *("headlines?", "bio(?:graphy)?", "abstracts?", "obituar(?:y|ies)", "messages?", "jokes?", "paragraphs?"),
    *("product descriptions?", "advertisements?"),
)
_REWORK = _any(
    *(
        "translate",
        "summari[sz]e",
        "rewrite",
        "rephrase",
        "paraphrase",
        "proofread",
        "shorten",
        "edit",
        "correct",
    ),
    *("continue", "complete", "classify", "extract", "convert", "transcribe"),
)
_CALCULATE = _any(
    *(
        "solve",
        "calculate",
        "compute",
        "evaluate",
        "simplify",
        r"factor(?:i[sz]e)?",
        "integrate",
        "differentiate",
    ),
    *("prove", "derive"),
)
_QUANTITY = _any(
    *(
        "values?",
        "number",
        "area",
        "volume",
        "length",
        "sum",
        "product",
        "probability",
        "distance",
        "perimeter",
    ),
    *("derivative", "integral", "roots?", "remainder", "slope", "angle", "average", "price", "cost"),
    r"(?:least|greatest|largest|smallest|minimum|maximum) \w+",
)
_HOW_MUCH = _any(
    "many", "much", "long", "far", "old", "tall", "high", "deep", "fast", "often", "heavy", "big", "large"
)
_AUXILIARY = _any(
    *(
        "is",
        "are",
        "was",
        "were",
        "do",
        "does",
        "did",
        "has",
        "have",
        "had",
        "should",
        "will",
        "would",
        "could",
    ),
    *("can", "may", "might", "must", "am", r"\w+n't"),
)
_SUBJECT = _any("it", "we", "i", "they", "he", "she", "you", "there", "the", "this")
_ONE_THING = _any(
    *("country", "city", "state", "year", "century", "day", "month", "person", "planet", "element", "language"),
    *("colou?r", "river", "book", "team", "company", "president", "animal"),
)
_ONE_FACT = _any(
    *(
        "capital",
        "name",
        "population",
        "definition",
        "meaning",
        "height",
        "formula",
        "date",
        "symbol",
        "currency",
    ),
    *("opposite", "plural", "author", r"\w+est", "first", "last"),
)

_RULES = (
    _rule(
        "says nothing that could be divided",
        r"\A\W*\Z",
        r"\A\W*(?:hi|hello|hey|thanks|thank you|ok|okay|yes|no)\W*\Z",
    ),
    _rule(
        "asks for code",
        r"```|#include\s*<|\bSELECT\b.+\bFROM\b|\b(?:def|class|function)\s+\w+\s*\(",
        rf"{_ASK}{_MAKE}{_NEAR}{_PROGRAM}\b",
        rf"{_ASK}(?:implement|code|debug|refactor|program|fix\s+(?:this|my|the))\b",
        rf"\bhow\s+(?:do|can|would|should)\s+(?:i|you|we){_NEAR}in\s+{_LANGUAGE}\b",
        rf"{_ASK}(?:{_MAKE}|fix|optimi[sz]e|port|convert|translate){_NEAR}(?:in|to|using|my|this)\s+{_LANGUAGE}\b",
    ),
    _rule(
        "asks for a calculation or a proof",
        r"\$[^$\n]*[\\^=_{][^$\n]*\$|\\(?:frac|sqrt|sum|int|begin|boxed|cdot|angle|\[|\()",
        r"\w\)?\s*=\s*[-(]?\w*\s*[-+*/^]|\d\s*[*/^+]\s*\d",
        rf"{_ASK}{_CALCULATE}\b",
        rf"\b(?:find|determine|what(?:'s|\s+is|\s+was)|express)\s+(?:the\s+)?{_QUANTITY}\b",
        # Two or more figures, other than years.
        r"(?:(?<![\w.,])\$?(?!(?:1\d|20)\d\d\b)\d[\d,.]*\b[\s\S]*){2}",
    ),
    _rule(
        "asks for one number",
        rf"(?:^|[.!?,]\s+|\b(?:about|and|so|then|in|total|average|exactly)\s+)how\s+{_HOW_MUCH}\b",
        r"\bwhat\s+(?:percent(?:age)?|fraction|year|time|age|date|power)\b",
    ),
    _rule(
        "asks for reasoning step by step",
        r"\bstep[\s-]by[\s-]step\b|\bshow\s+(?:your|all)\s+(?:work|steps|reasoning)\b",
    ),
    _rule(
        "asks for one piece of writing",
        rf"{_ASK}{_MAKE}{_NEAR}{_PIECE}\b",
        rf"{_ASK}tell\s+(?:me\s+)?(?:an?|the)\s+(?:\w+\s+)?(?:story|joke|tale)\b|{_ASK}draft\s+an?\b",
    ),
    _rule("asks to work on a given text", rf"{_ASK}{_REWORK}\b"),
    _rule(
        "asks to play a role",
        r"\b(?:pretend|imagine)\s+(?:to\s+be|(?:that\s+)?you(?:\s+are|'re|rself))\b|\bact\s+(?:as|like)\s+an?\b",
        r"^you\s+are\s+(?:now\s+)?an?\b|^if\s+you\s+were\s+(?:an?|the)\b|\b(?:introduce|describe)\s+yourself\b",
        r"^as\s+an?\s+[^,.?!]{2,60},\s+(?:\w+\s+){0,3}(?:you|your|describe|tell|explain)\b",
    ),
    _rule(
        "asks for a decision",
        rf"^(?!{_POLITE}\b){_AUXILIARY}\s+\w+[^.?!\n]*\?",
        rf",\s+{_AUXILIARY}\s+{_SUBJECT}\b[^.?!\n]*\?",
        r"\bwhich\s+(?:\w+\s+){0,2}(?:is|are|was|would\s+be)\s+(?:\w+er|more|less|(?:the\s+)?(?:best|better|\w+est))\b",
    ),
    _rule(
        "asks for one fact",
        r"\A(?:who|whose|whom|when|where)\b[^,\n]{0,80}\?\s*\Z",
        rf"^(?:in\s+)?(?:what|which)\s+{_ONE_THING}\b",
        rf"^what(?:\s+is|\s+was|'s)\s+the\s+(?:\w+\s+)?{_ONE_FACT}\b",
        r"^(?:define|name|spell)\b[^.\n]{0,40}$",
    ),
)

_CHAIN = _rule(
    "asks for a process whose steps follow from one another",
    r"\b(?:the|a)\s+process\s+(?:of|by\s+which|behind)\b|^how\s+(?:do|does|did)\s+[^.?!\n]{1,60}?\s+work\b",
    r"\b(?:recipe|walkthrough|timeline|chronolog\w+)\b|\b(?:the|a)\s+history\s+of\b",
)
