"""From the bytes of an event stream to the data of its events. Pure, and cheap: it is called for every token.

Names, ids and comments of events are passed over: model servers say everything in the data. Line ends may be of any
kind, and pieces may end anywhere, within a character too.
"""

from __future__ import annotations

DONE = b"[DONE]"
"""The data of the event that ends a stream, by OpenAI's convention."""


class Events:
    """The events of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that are whole by now."""
        buffer = self._rest + received
        held = b""
        if b"\r" in buffer:
            if buffer.endswith(b"\r"):  # half a line end, perhaps
                buffer, held = buffer[:-1], b"\r"
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = buffer.split(b"\n\n")
        self._rest = rest + held
        return [data for event in whole if (data := _data(event))]

    def finish(self) -> list[bytes]:
        """At the end of the stream: the data of an event that lacks its blank line."""
        return self.feed(b"\n\n")


def _data(event: bytes) -> bytes:
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].strip()
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].strip() for line in lines)
