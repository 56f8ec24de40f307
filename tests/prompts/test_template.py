"""Prompt files are checked when loaded, render exactly what they are given, and keep the conversation around them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from anabranch import prompts
from anabranch.orchestrator.branch import Branch, Message
from anabranch.orchestrator.errors import InvalidParameter, UnknownName

FILE = """
purpose = "to test"
source = "ours"
variables = ["question", "n"]
[[messages]]
role = "user"
content = \"\"\"Give {{ n }} points on: {{ question }}\"\"\"
[[messages]]
role = "assistant"
content = "1."
"""


def write(folder: Path, text: str, name: str = "own/try") -> Path:
    path = folder / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def prompt(tmp_path: Path) -> prompts.Prompt:
    return prompts.load("own/try", write(tmp_path, FILE))


def test_a_prompt_renders_its_messages(prompt: prompts.Prompt) -> None:
    """Values go into the texts; roles and order are those of the file."""
    assert prompt.render(question="love", n=3) == (
        Message(role="user", content="Give 3 points on: love"),
        Message(role="assistant", content="1."),
    )
    assert prompt.variables == ("question", "n")


@pytest.mark.parametrize(
    "question", ["{{ 7 * 7 }}", "{% if n %}x{% endif %}", "{# gone #}", "{{", "a\n\n  b\n", "<b>&'"]
)
def test_values_are_never_rendered(prompt: prompts.Prompt, question: str) -> None:
    """Template syntax and markup in a question stay as they are."""
    assert prompt.render(question=question, n=1)[0].content == f"Give 1 points on: {question}"


def test_missing_and_unknown_variables_are_named(prompt: prompts.Prompt) -> None:
    """Both are errors that name the prompt and the variable."""
    with pytest.raises(InvalidParameter, match=r"own/try: variable 'n' was not given"):
        prompt.render(question="x")
    with pytest.raises(InvalidParameter, match=r"own/try: has no variable 'm'"):
        prompt.render(question="x", n=1, m=2)


def test_apply_keeps_the_conversation(prompt: prompts.Prompt) -> None:
    """History, system message and images stay; only the text of the last user message is replaced."""
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    wire: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "name": "ann", "content": [image, {"type": "text", "text": "Why?"}]},
    ]
    branch = Branch.of(wire)
    asked = prompt.apply(branch, question=branch.question, n=2)
    assert asked.messages[:3] == branch.messages[:3]
    assert asked.messages[3].to_wire() == {
        "role": "user",
        "name": "ann",
        "content": [image, {"type": "text", "text": "Give 2 points on: Why?"}],
    }
    assert asked.text == "1."


def test_apply_adds_a_turn_after_a_tools_reply(prompt: prompts.Prompt) -> None:
    """Where the conversation does not end with the user, nothing of it is replaced."""
    branch = Branch.of(
        [{"role": "user", "content": "Time?"}, {"role": "tool", "content": "noon", "tool_call_id": "1"}]
    )
    asked = prompt.apply(branch, question=branch.question, n=2)
    assert asked.messages[:2] == branch.messages
    assert asked.messages[2] == Message(role="user", content="Give 2 points on: Time?")


def test_apply_keeps_what_the_branch_depends_on(prompt: prompts.Prompt) -> None:
    """The place of the branch in the run is kept."""
    branch = Branch.of("Why?")
    deep = type(branch)(messages=branch.messages, depth=3, span=40)
    asked = prompt.apply(deep, question="q", n=1)
    assert (asked.depth, asked.span) == (3, 40)


def test_the_users_folder_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument wins over ANABRANCH_PROMPTS, which wins over our files; what a folder lacks is taken from ours."""
    name = prompts.names()[0]
    ours = prompts.load(name)
    named = write(tmp_path / "named", FILE.replace("to test", "named"), name)
    given = write(tmp_path / "given", FILE.replace("to test", "given"), name)
    monkeypatch.setenv("ANABRANCH_PROMPTS", str(named))
    assert prompts.load(name).purpose == "named"
    assert prompts.load(name, given).purpose == "given"
    assert prompts.load(name, tmp_path / "empty").purpose == ours.purpose
    assert "own/try" in prompts.names(write(tmp_path / "more", FILE))


def test_an_edited_file_takes_effect(tmp_path: Path) -> None:
    """A prompt is parsed once, and again when its file changes."""
    folder = write(tmp_path, FILE)
    first = prompts.load("own/try", folder)
    assert prompts.load("own/try", folder) is first
    write(tmp_path, FILE.replace("to test", "edited"))
    os.utime(folder / "own/try.toml", ns=(1, 1))
    assert prompts.load("own/try", folder).purpose == "edited"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"n"]', '"n", "m"]', "not the same: m"),
        ('["question", "n"]', '["question"]', "not the same: n"),
        ("{{ n }}", "{{ n", "unexpected|expected"),
        ("{{ n }}", "{% for %}", "Expected"),
        ('role = "user"', 'role = "poet"', "role"),
        ('role = "user"', 'role = "assistant"', "needs a user message"),
        ("purpose =", "about =", "needs exactly"),
        ("[[messages]]", "[[messages", "Expected|expected"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, old: str, new: str, problem: str) -> None:
    """Each mistake in a file is an error that names the file and the mistake."""
    folder = write(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(InvalidParameter, match=problem) as caught:
        prompts.load("own/try", folder)
    assert str(folder / "own/try.toml") in str(caught.value)


def test_templates_run_in_a_sandbox(tmp_path: Path) -> None:
    """A template cannot reach into Python; that it tried is an error that names the file."""
    folder = write(tmp_path, FILE.replace("{{ n }}", "{{ n.__class__.__mro__ }}"))
    with pytest.raises(InvalidParameter, match="own/try"):
        prompts.load("own/try", folder).render(question="x", n=1)


@pytest.mark.parametrize(
    "name", ["skeleton/nothing", "../outline", "/etc/passwd", "skeleton/../skeleton/outline", ""]
)
def test_unknown_names_list_those_there_are(name: str) -> None:
    """A name that is not there, or leads out of the folder, is refused with the known ones."""
    with pytest.raises(UnknownName, match="skeleton/outline"):
        prompts.load(name)
