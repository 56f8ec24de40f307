"""Reads prompt files, checks them, and renders them onto branches.

A file declares its purpose, its source, its variables, and its messages as Jinja2 texts; a last assistant message is
the beginning of the answer (prefill). Values are put in as they are and never rendered again, so braces in a question
stay what they are; templates run in a sandbox.

Invariant: the variables that a loaded prompt declares are exactly those that its texts use.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.orchestrator.branch import Branch, Message
from anabranch.orchestrator.errors import InvalidParameter, UnknownName

if TYPE_CHECKING:
    from jinja2 import Environment, Template

FOLDER_VARIABLE = "ANABRANCH_PROMPTS"
"""Environment variable that names the user's own folder of prompts."""

_OWN = Path(__file__).parent
_NAME = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)*")
_KEYS = {"purpose": str, "source": str, "variables": list, "messages": list}
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt text, parsed and checked.

    Attributes:
        name: such as `skeleton/outline`.
        purpose: what it is for, in a line.
        source: the paper and section that it follows, or `ours`.
        variables: the names that `render` and `apply` need, all of them.
        path: the file that it came from.
    """

    name: str
    purpose: str
    source: str
    variables: tuple[str, ...]
    path: Path
    _turns: tuple[tuple[str, Template], ...]

    def render(self, **values: object) -> tuple[Message, ...]:
        """The messages with these values filled in; a last assistant message is the prefill.

        Raises:
            InvalidParameter: a variable is missing, or one is given that the prompt does not declare.
        """
        for name in self.variables:
            if name not in values:
                raise InvalidParameter(f"prompt {self.name}", f"variable {name!r} was not given")
        for name in values:
            if name not in self.variables:
                raise InvalidParameter(f"prompt {self.name}", f"has no variable {name!r}")
        return tuple(Message(role=role, content=self._fill(text, values)) for role, text in self._turns)

    def apply(self, branch: Branch, /, **values: object) -> Branch:
        """This prompt asked in place of the branch's last user message.

        What came before it (system message, earlier turns) stays, and so do the parts of the message that are not
        text, such as images. Where the last message is not the user's (a tool's reply), the prompt is added after it.
        The prefill becomes the branch's text; on a backend that cannot continue it, leave it out by
        `branch.ask(branch.messages)`.

        Raises:
            InvalidParameter: as `render`.
        """
        turns = list(self.render(**values))
        begun = turns.pop() if turns[-1].role == "assistant" else None
        history = branch.messages
        if history and history[-1].role == "user":
            turns[-1] = _with_text(history[-1], turns[-1])
            history = history[:-1]
        asked = branch.ask((*history, *turns))
        return asked.say(begun.text) if begun else asked

    def _fill(self, text: Template, values: Mapping[str, object]) -> str:
        from jinja2 import TemplateError

        try:
            return text.render(values)
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidParameter(f"prompt {self.name}", f"{self.path}: {error}") from error


def load(name: str, folder: Path | None = None) -> Prompt:
    """The prompt of this name, such as `skeleton/outline`.

    The user's folder is looked at first: `folder`, else the one that ANABRANCH_PROMPTS names.

    Raises:
        UnknownName: there is no such prompt.
        InvalidParameter: its file is not what a prompt file should be.
    """
    if _NAME.fullmatch(name):
        for place in (_users_folder(folder), _OWN):
            path = place / f"{name}.toml" if place else None
            if path and path.is_file():
                return _parse(name, path, path.stat().st_mtime_ns)
    raise UnknownName("prompt", name, names(folder))


def names(folder: Path | None = None) -> list[str]:
    """The names of all prompts there are, the user's own included."""
    places = [place for place in (_OWN, _users_folder(folder)) if place]
    return sorted({f.relative_to(p).with_suffix("").as_posix() for p in places for f in p.rglob("*.toml")})


def _users_folder(folder: Path | None) -> Path | None:
    if folder is not None:
        return folder
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else None


@cache
def _parse(name: str, path: Path, _changed_ns: int) -> Prompt:
    """Parsed once for each version of the file, so that an edit takes effect without a restart."""
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(path, str(error)) from error
    _check_keys(path, body)
    declared = tuple(body["variables"])
    texts = [(message["role"], message["content"]) for message in body["messages"]]
    turns = tuple((role, _compile(path, text)) for role, text in texts)
    _check_variables(path, declared, [text for _, text in texts])
    return Prompt(
        name=name,
        purpose=body["purpose"],
        source=body["source"],
        variables=declared,
        path=path,
        _turns=turns,
    )


def _check_keys(path: Path, body: Mapping[str, Any]) -> None:
    if set(body) != set(_KEYS) or not all(isinstance(body[key], kind) for key, kind in _KEYS.items()):
        raise _bad(path, f"needs exactly {', '.join(_KEYS)}; has {', '.join(body) or 'nothing'}")
    messages = body["messages"]
    for message in messages:
        if set(message) != {"role", "content"} or message["role"] not in _ROLES:
            raise _bad(path, f"a message needs role ({', '.join(_ROLES)}) and content, got {message!r:.80}")
    asking = messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages
    if not asking or asking[-1]["role"] != "user":
        raise _bad(path, "needs a user message, last or before the assistant's prefill")


def _check_variables(path: Path, declared: tuple[str, ...], texts: list[str]) -> None:
    from jinja2 import meta

    used: set[str] = set()
    for text in texts:
        used |= meta.find_undeclared_variables(_environment().parse(text))
    if used != set(declared):
        wrong = ", ".join(sorted(used ^ set(declared)))
        raise _bad(path, f"variables declared and used are not the same: {wrong}")


def _compile(path: Path, text: str) -> Template:
    from jinja2 import TemplateSyntaxError

    try:
        return _environment().from_string(text)
    except TemplateSyntaxError as error:
        raise _bad(path, f"{error.message} (line {error.lineno} of a message)") from error


@cache
def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _bad(path: Path, problem: str) -> InvalidParameter:
    return InvalidParameter(f"prompt file {path}", problem)


def _with_text(message: Message, rendered: Message) -> Message:
    """The message with its text parts replaced by one, at the place of the first of them."""
    if not isinstance(message.content, tuple):
        return replace(message, content=rendered.text)
    parts = message.content
    place = next((i for i, part in enumerate(parts) if part.get("type") == "text"), len(parts))
    before = [part for part in parts[:place] if part.get("type") != "text"]
    after = [part for part in parts[place:] if part.get("type") != "text"]
    return replace(message, content=(*before, {"type": "text", "text": rendered.text}, *after))
