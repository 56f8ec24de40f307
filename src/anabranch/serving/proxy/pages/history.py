"""History: recent runs, recorded so that people can look at them, while they run and afterwards.

It lives in memory, in one process: of several workers each has its own, and none outlives its process.

Invariant: only the owner of a run can find it.
"""

from __future__ import annotations

from collections import deque

from anabranch.serving.proxy.pages.recording import Recording
from anabranch.serving.proxy.requests import RequestInfo, RunListener


class History:
    """The recent runs of a proxy: an observer of it.

    Args:
        most: runs that are kept. Those that have ended longest ago go first; what still runs never goes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._runs: dict[str, Recording] = {}
        self._ended: deque[str] = deque()
        self._under_way: dict[int, list[Recording]] = {}

    def request_began(self, request: RequestInfo) -> None:
        """A request without a run leaves nothing here."""

    def run_opened(self, request: RequestInfo) -> RunListener | None:
        """Record a run."""
        if not self._most:
            return None
        recording = Recording(request, began=self._run_began, ended=self._run_ended)
        self._under_way.setdefault(id(request), []).append(recording)
        return recording.hear

    def request_ended(self, request: RequestInfo) -> None:
        """None of its runs goes on."""
        for recording in self._under_way.pop(id(request), ()):
            recording.break_off()

    def runs(self, owner: str, most: int) -> list[Recording]:
        """The runs of an owner, the newest first."""
        own = (each for each in reversed(self._runs.values()) if each.request.owner == owner)
        return [recording for recording, _ in zip(own, range(most), strict=False)]

    def find(self, owner: str, name: str) -> Recording | None:
        """A run of this owner, by its own id or its request's: of several choices the first. None if there is none."""
        found = self._runs.get(name)
        if found is not None and found.request.owner == owner:
            return found
        own = (each for each in self._runs.values() if each.request.owner == owner)
        return next((each for each in own if each.request.request_id == name), None)

    def _run_began(self, recording: Recording) -> None:
        self._runs[recording.run_id] = recording
        self._forget()

    def _run_ended(self, recording: Recording) -> None:
        self._ended.append(recording.run_id)
        self._forget()

    def _forget(self) -> None:
        while len(self._runs) > self._most and self._ended:
            self._runs.pop(self._ended.popleft(), None)
