"""The trace file: what was written is read back, whatever happened to the writer."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.orchestrator.events import Event, GenerationDelta, RunFinished, RunStarted, to_json
from anabranch.orchestrator.trace import TraceWriter, read_trace


def some_events() -> list[Event]:
    started = RunStarted(
        t=0.0, run_id="r", strategy="skeleton", question="Wie?\n„So“", backend="scripted:", started_at=1.5
    )
    deltas = [GenerationDelta(t=0.25 + i / 8, id=1, text=f"word {i}\u2028", tokens=1) for i in range(40)]
    return [started, *deltas, RunFinished(t=9.0, finish_reason="stop", summary={"usage": {"work": 40}})]


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    """A trace read back is the events that were written, compressed or not."""
    with TraceWriter(tmp_path / name) as trace:
        for event in some_events():
            trace.write(event)
    assert read_trace(tmp_path / name) == some_events()


def test_the_suffix_decides_on_compression(tmp_path: Path) -> None:
    """Only a name that ends in .gz is compressed."""
    for name, magic in (("a.jsonl", b'{"'), ("a.jsonl.gz", b"\x1f\x8b")):
        with TraceWriter(tmp_path / name) as trace:
            trace.write(some_events()[0])
        assert (tmp_path / name).read_bytes()[:2] == magic


@pytest.mark.parametrize(("name", "least"), [("run.jsonl", 41), ("run.jsonl.gz", 36)])
def test_a_crash_keeps_what_there_was(tmp_path: Path, name: str, least: int) -> None:
    """A trace that was never closed has all events, but for the last half second of a compressed one."""
    trace = TraceWriter(tmp_path / name)
    for event in some_events()[:-1]:
        trace.write(event)
    kept = read_trace(tmp_path / name)
    assert len(kept) >= least
    assert kept == some_events()[: len(kept)]
    trace.close()


def test_a_last_line_that_was_cut_is_forgiven(tmp_path: Path) -> None:
    """A writer that died in the middle of a line costs that line only."""
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(to_json, some_events()))[:-20], encoding="utf-8")
    assert read_trace(path) == some_events()[:-1]


def test_a_compressed_trace_that_was_cut_is_read_up_to_the_cut(tmp_path: Path) -> None:
    """Of a compressed file without its end, the whole lines before the cut are read."""
    path = tmp_path / "run.jsonl.gz"
    whole = gzip.compress("".join(to_json(event) + "\n" for event in some_events()).encode())
    path.write_bytes(whole[: len(whole) * 3 // 4])
    kept = read_trace(path)
    assert 0 < len(kept) < len(some_events())
    assert kept == some_events()[: len(kept)]


def test_a_line_that_is_no_event_is_named_by_its_number(tmp_path: Path) -> None:
    """The error for a bad line says which line, and what is wrong with it."""
    path = tmp_path / "run.jsonl"
    path.write_text(to_json(some_events()[0]) + '\n{"type":"nonsense"}\n', encoding="utf-8")
    with pytest.raises(InvalidParameter, match=r"line 2: not an event"):
        read_trace(path)


def test_blank_lines_count_but_say_nothing(tmp_path: Path) -> None:
    """Blank lines are skipped, and the numbers in errors still are those of the file."""
    path = tmp_path / "run.jsonl"
    path.write_text("\n\n" + to_json(some_events()[0]) + "\n\nnonsense\n", encoding="utf-8")
    with pytest.raises(InvalidParameter, match="line 5"):
        read_trace(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00"])
def test_a_file_without_events_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is empty or not text is an error that names the file, not an empty run."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidParameter, match=r"run\.jsonl"):
        read_trace(path)


def test_a_missing_file_and_a_file_that_is_not_compressed(tmp_path: Path) -> None:
    """A path that cannot be read is an error that says why."""
    with pytest.raises(InvalidParameter, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "plain.gz").write_text("plain")
    with pytest.raises(InvalidParameter, match="cannot read"):
        read_trace(tmp_path / "plain.gz")


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """A trace that cannot be created fails before the run, with the reason."""
    with pytest.raises(InvalidParameter, match="cannot write"):
        TraceWriter(tmp_path / "no" / "folder" / "run.jsonl")


def test_half_a_surrogate_pair_does_not_end_the_trace(tmp_path: Path) -> None:
    """Text that is not valid Unicode is written with a replacement."""
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as trace:
        trace.write(GenerationDelta(t=0.0, id=1, text="a\ud800b", tokens=1))
    assert read_trace(path) == [GenerationDelta(t=0.0, id=1, text="a?b", tokens=1)]
