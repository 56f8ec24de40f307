"""The recording format: round trip, errors that say what to do, files that a crash has cut."""

from __future__ import annotations

import gzip
import json
import math
import os
import tempfile
from pathlib import Path

import convert_traces
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch.orchestrator.backend import Delta, TokenLogprob
from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.recordings import FORMAT, Chunk, IncompleteRecording, Trace, Writer, read, write
from anabranch.serving.recordings.recorder import chunk_of

DATA = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "traces"
SUFFIXES = pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
LINE = {"id": "p", "problem": "What is 2 + 3?", "sample": 0, "text": "5"}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
figures = st.lists(st.floats(-50, 50), max_size=3).map(tuple)
chunks = st.lists(
    st.builds(
        Chunk,
        text=texts,
        reasoning=texts,
        tokens=st.integers(3, 9),
        seconds=st.none() | st.floats(0, 1e6),
        confidences=figures,
        logprobs=figures,
    ),
    max_size=4,
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    parts = tuple(draw(chunks))
    return Trace(
        id=draw(texts.filter(bool)),
        problem=draw(texts.filter(bool)),
        answer=draw(st.none() | texts),
        sample=draw(st.integers(0, 9)),
        text="".join(part.text for part in parts) if parts else draw(texts),
        reasoning="".join(part.reasoning for part in parts) if parts else draw(texts),
        tokens=draw(st.none() | st.integers(0, 99)),
        chunks=parts,
        sampling={"temperature": draw(st.floats(0, 2))},
        own=draw(st.dictionaries(texts, st.integers(), max_size=2)),  # type: ignore[call-arg]
    )


def lines_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines(keepends=True)


def a_trace(sample: int = 0, text: str = "five") -> Trace:
    return Trace(id="p", problem="What is 2 + 3?", sample=sample, text=text)


@SUFFIXES
@given(written=st.lists(traces(), max_size=3))
def test_what_is_written_is_read(suffix: str, written: list[Trace]) -> None:
    """Every field, keys of one's own included, comes back as it was, in the same order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"traces{suffix}"
        write(path, written)
        assert list(read(path)) == written
        assert json.loads(lines_of(path)[0])["format"] == FORMAT


def test_numbers_are_taken_for_ids_and_answers_and_a_header_is_not_needed(tmp_path: Path) -> None:
    """Files that others made: a number as id or answer is read as the text that it is written as."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({**LINE, "id": 7, "answer": 5, "level": "easy"}) + "\n\n")
    (found,) = read(path)
    assert (found.id, found.answer, found.model_extra) == ("7", "5", {"level": "easy"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sample": -1}, "sample: .*; write no negative number"),
        ({"tokens": 1.5}, "tokens: .*; write a whole number"),
        ({"text": None}, "text: .*; write text"),
        ({"id": ""}, "id: .*at least one character"),
        ({"problem": ""}, "no prompt; give `problem`"),
        ({"messages": [{"content": "x"}]}, "without a role"),
        ({"chunks": [{"text": "6"}]}, "the chunks' text, joined, is not `text`"),
        ({"chunks": [{"text": "5", "confidences": [1, 2]}]}, "chunks.0: 2 confidences for 1 tokens"),
        ({"chunks": [{"text": "5", "seconds": -1}]}, "chunks.0.seconds: "),
        ({"finish_reason": "done"}, "finish_reason: .*docs/recordings.md"),
    ],
)
def test_a_wrong_line_is_named_with_its_field_and_what_to_do(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    """The error names file, line, field and fix; blank lines count."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps({**LINE, **change})}\n")
    with pytest.raises(InvalidParameter, match=rf"t\.jsonl, line 3.*{said}"):
        list(read(path))


def test_a_missing_field_and_broken_json_are_named(tmp_path: Path) -> None:
    """A whole line that is no JSON is an error, not a cut."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "p", "problem": "x", "text": ""}\n')
    with pytest.raises(InvalidParameter, match="line 1, sample: Field required; add it"):
        list(read(path))
    path.write_text(f'{json.dumps(LINE)}\n{{"id": \n')
    with pytest.raises(InvalidParameter, match=r"line 2: .*one whole JSON object a line"):
        list(read(path))


def test_another_format_or_a_later_version_is_refused(tmp_path: Path) -> None:
    """The header says what the file is."""
    path = tmp_path / "t.jsonl"
    for header in ({"format": FORMAT, "version": 2}, {"format": "other", "version": 1}):
        path.write_text(json.dumps(header) + "\n")
        with pytest.raises(InvalidParameter, match=r"line 1, format: .*update anabranch"):
            list(read(path))


def test_a_file_that_is_not_there_or_no_gzip_is_named(tmp_path: Path) -> None:
    """Not a traceback of the operating system's."""
    with pytest.raises(InvalidParameter, match=r"cannot read .*none\.jsonl: No such file"):
        list(read(tmp_path / "none.jsonl"))
    (tmp_path / "t.jsonl.gz").write_text(json.dumps(LINE) + "\n")
    with pytest.raises(InvalidParameter, match=r"cannot read .*gzip"):
        list(read(tmp_path / "t.jsonl.gz"))


@SUFFIXES
def test_wherever_a_crash_cuts_the_last_line_the_others_are_read(tmp_path: Path, suffix: str) -> None:
    """At each byte: a warning and the traces before; going on to write drops the half line and keeps the rest."""
    path = tmp_path / f"t{suffix}"
    write(path, [a_trace(0)])
    start = path.stat().st_size
    with Writer(path) as writer:
        writer.write(a_trace(1))
    whole = path.read_bytes()
    for end in range(start + 1, len(whole)):
        path.write_bytes(whole[:end])
        told: list[str] = []
        found = [trace.sample for trace in read(path, told=told.append)]
        # all that is missing may be the end of the line, or gzip's check sum
        assert found in ([0], [0, 1]), end
        assert len(told) == 1 or found == [0, 1], end
        with Writer(path) as writer:
            writer.write(a_trace(2))
        assert [trace.sample for trace in read(path)] == [*found, 2], end


def test_a_cut_line_is_warned_of(tmp_path: Path) -> None:
    """Where nobody is told, it is a warning of its own kind."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(LINE) + '\n{"id": "p", "te')
    with pytest.warns(IncompleteRecording, match=r"t\.jsonl, line 2, the last, was cut"):
        assert len(list(read(path))) == 1


def test_each_trace_is_in_the_file_when_it_is_written(tmp_path: Path) -> None:
    """Nothing waits in a buffer for the end."""
    path = tmp_path / "t.jsonl.gz"
    with Writer(path) as writer:
        writer.write(a_trace(0))
        assert [trace.sample for trace in read(path)] == [0]


def test_half_a_surrogate_pair_does_not_end_a_recording(tmp_path: Path) -> None:
    """What UTF-8 cannot say is replaced."""
    path = tmp_path / "t.jsonl"
    write(path, [Trace.model_construct(id="p", problem="x", sample=0, text="a\ud83d")])
    assert [trace.text for trace in read(path)] == ["a?"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error is one of ours."""
    with pytest.raises(InvalidParameter, match="cannot write"):
        Writer(tmp_path / "none" / "t.jsonl")


def test_traces_are_frozen() -> None:
    """They are values."""
    with pytest.raises(ValidationError, match="frozen"):
        a_trace().text = "6"


@pytest.mark.parametrize(
    ("name", "count", "scored"),
    [("qwen_math100x8_rm", 800, True), ("tot_game24_gpt4_cot_100x100", 10_000, False)],
)
def test_published_recordings_are_converted(tmp_path: Path, name: str, count: int, scored: bool) -> None:
    """Every sample becomes a trace with what is known of it; read back, nothing has changed."""
    source = DATA / f"{name}.jsonl.gz"
    if not source.is_file():
        pytest.skip(f"{source} is not there; ANABRANCH_TEST_DATA names the folder of recorded data")
    converted = list(convert_traces.convert(source))
    write(tmp_path / "t.jsonl", converted)
    assert list(read(tmp_path / "t.jsonl")) == converted
    assert len({(trace.id, trace.sample) for trace in converted}) == count
    assert all((trace.score is not None) == scored for trace in converted)
    assert all(trace.tokens is None and trace.characters == len(trace.text) for trace in converted)
    assert all(isinstance((trace.model_extra or {})["correct"], bool) for trace in converted)


def test_a_piece_of_a_stream_becomes_a_chunk() -> None:
    """A confidence is minus the mean over the candidates; what a server rules out counts as -100, not as infinity."""
    sure = TokenLogprob(token="a", logprob=-0.5, top=(("a", -0.5), ("b", -3.5)))
    out = TokenLogprob(token="b", logprob=-math.inf, top=(("a", 0.0), ("b", -math.inf)))
    chunk = chunk_of(Delta(text="ab", tokens=2, logprobs=(sure, out)), 1.25)
    assert chunk == Chunk(text="ab", tokens=2, seconds=1.25, confidences=(2.0, 50.0), logprobs=(-0.5, -100.0))
    bare = TokenLogprob(token="a", logprob=-0.5)
    assert chunk_of(Delta(text="a", logprobs=(bare,)), 0.0).confidences == ()


def test_the_example_of_the_documentation_is_a_recording(tmp_path: Path) -> None:
    """Its header and its line are read, and every field of the format is in the text."""
    page = Path(__file__).parents[2] / "docs" / "recordings.md"
    text = page.read_text(encoding="utf-8")
    path = tmp_path / "t.jsonl"
    path.write_text(text.split("```json\n")[1].split("```")[0], encoding="utf-8")
    (trace,) = read(path)
    assert (trace.id, sum(chunk.tokens for chunk in trace.chunks)) == ("sum", 4)
    assert [name for kind in (Trace, Chunk) for name in kind.model_fields if f"`{name}`" not in text] == []
