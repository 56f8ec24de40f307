"""Metrics of the proxy for Prometheus: an observer that counts.

Figures of generations come from the events of runs, so they are there for runs that fail or are left, too. Of a
request that passes through, only the request itself is known: its tokens and its call upstream are counted nowhere.

Where several processes serve, `PROMETHEUS_MULTIPROC_DIR` must name a folder of theirs before prometheus_client is
imported; whichever of them is scraped then answers for all.

Invariant: no label has a value that a client can choose. Strategies are validated names, models are those of
`know_models`, and whatever else there is comes from a fixed list or is called `other`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from prometheus_client.values import ValueClass

from anabranch.serving.proxy.observers.counting import CountedRun, Watch
from anabranch.serving.proxy.observers.routes import OTHER, route_of
from anabranch.serving.proxy.observers.series import Series
from anabranch.serving.proxy.requests import RequestInfo, RunListener

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_GONE = 499


class Metrics:
    """Counts what the proxy does. An observer; belongs to one event loop."""

    def __init__(self) -> None:
        self.series = Series()
        self._shared: bool = ValueClass._multiprocess
        self._models: frozenset[str] = frozenset()
        self._watched: dict[int, Watch] = {}
        self._followed: list[tuple[Gauge, Callable[[], float]]] = []

    # The observer

    def request_began(self, request: RequestInfo) -> None:
        """Count it as under way."""
        self._watched[id(request)] = watch = Watch(counts=request.path.startswith("/v1/"))
        if watch.counts:
            self.series.inflight.inc()
        if self._shared:
            self._read_followed()

    def run_opened(self, request: RequestInfo) -> RunListener | None:
        """Count what happens in a run."""
        watch = self._watched.get(id(request)) or Watch(counts=False)
        watch.ran = True
        return CountedRun(self.series, watch, request.strategy, self.model).hear

    def request_ended(self, request: RequestInfo) -> None:
        """Count it, with how it ended."""
        watch = self._watched.pop(id(request), None) or Watch(counts=False)
        series, route, strategy = self.series, route_of(request), request.strategy
        if watch.counts:
            series.inflight.dec()
        series.requests(route, strategy, str(request.status)).inc()
        if request.wall_s is not None:
            series.duration(route, strategy).observe(request.wall_s)
        if request.stream and not watch.ran and request.first_byte_s is not None and _began_well(request):
            series.ttft(strategy).observe(request.first_byte_s)
        self._count_bad_end(request)
        if self._shared:
            self._read_followed()

    def _count_bad_end(self, request: RequestInfo) -> None:
        if request.status == _GONE:
            self.series.cancelled("client").inc()
        elif request.error_code == "shutdown":
            self.series.cancelled("shutdown").inc()
        elif request.error_code and request.status < 400:
            self.series.broken(request.strategy).inc()

    # What it is told

    def know_models(self, names: Iterable[str]) -> None:
        """Name the models that the server lists: all others are counted as `other`."""
        self._models = frozenset(names)

    def model(self, name: str) -> str:
        """The label for a model."""
        return name if name in self._models else OTHER

    def follow(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Show a figure that somebody else keeps, as gauge `anabranch_{name}`.

        It is read at each scrape; where several processes serve, as requests come and go, and summed.
        """
        self._followed.append((self.series.gauge(name, documentation), read))

    # What it tells

    def render(self) -> tuple[bytes, str]:
        """The figures, of all processes, in Prometheus' text format; and its content type."""
        self._read_followed()
        if not self._shared:
            return generate_latest(_WithoutCreated(self.series.registry)), CONTENT_TYPE_PLAIN_0_0_4
        forget_dead_workers()
        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        return generate_latest(merged), CONTENT_TYPE_PLAIN_0_0_4

    def _read_followed(self) -> None:
        for gauge, read in self._followed:
            gauge.set(read())


def forget_dead_workers(folder: str | None = None) -> None:
    """Take the gauges of processes that are gone out of a shared folder; what they counted stays. `render` does it.

    Args:
        folder: `$PROMETHEUS_MULTIPROC_DIR` where left out; without one nothing is done.
    """
    folder = folder or os.environ.get(_FOLDER)
    if not folder or os.name == "nt":  # where asking whether a process lives would end it
        return
    for pid in {file.stem.rpartition("_")[2] for file in Path(folder).glob("gauge_live*_*.db")}:
        if pid.isdigit() and not _alive(int(pid)):
            with suppress(FileNotFoundError):  # another worker was quicker
                mark_process_dead(int(pid), folder)  # type: ignore[no-untyped-call]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _began_well(request: RequestInfo) -> bool:
    return request.status == _GONE or 200 <= request.status < 300


class _WithoutCreated(Collector):
    """A registry without `_created` series: they double its size, and the figures of several processes have none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            family.samples = [each for each in family.samples if not each.name.endswith("_created")]
            yield family
