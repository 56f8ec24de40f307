"""Recorded traces: a file format of JSON lines, how to read and write it, and how to record it from any backend.

    for trace in read("traces.jsonl.gz"):
        print(trace.id, trace.sample, trace.text)

`docs/recordings.md` describes the format. The backend `replay:` plays such files; `anabranch record` writes them.
"""

from anabranch.serving.recordings.format import FORMAT, VERSION, Chunk, Trace
from anabranch.serving.recordings.reading import IncompleteRecording, read
from anabranch.serving.recordings.writing import Writer, write

__all__ = ["FORMAT", "VERSION", "Chunk", "IncompleteRecording", "Trace", "Writer", "read", "write"]
