"""Series: every metric of the proxy, with its name, its labels, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "anabranch_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

Child = Callable[..., Any]
"""Gives the series for labels' values, in their order."""


class Series:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._of_requests()
        self._of_runs()

    def _of_requests(self) -> None:
        self.requests = self._counter(
            "requests",
            "Requests by route, strategy (none: passed through), status (499: the client went away).",
            ("route", "strategy", "status"),
        )
        self.broken = self._counter(
            "broken_streams", "Replies that an error ended after their status had been sent.", ("strategy",)
        )
        self.cancelled = self._counter(
            "cancelled",
            "Stopped before the end: requests by client or shutdown, runs by deadline or budget.",
            ("reason",),
        )
        self.duration = self._histogram(
            "request_duration_seconds",
            "From a request's arrival to the end of its reply.",
            ("route", "strategy"),
        )
        self.ttft = self._histogram(
            "ttft_seconds",
            "From a request's arrival to the first piece of its answer; of what passes through, streams only.",
            ("strategy",),
        )
        self.inflight = self.gauge(
            "requests_inflight", "Requests below /v1, those that wait for a place included."
        )

    def _of_runs(self) -> None:
        self.overhead = self._histogram(
            "overhead_seconds",
            "Of a run: the time in which none of its calls was at a model server or waited for one.",
            ("strategy",),
            SHORT,
        )
        self.branches = self._counter(
            "branches",
            "Generations that ended, by outcome: a finish reason, failed, or unstarted.",
            ("strategy", "outcome"),
        )
        self.fallbacks = self._counter(
            "fallbacks", "Runs whose strategy could not apply: their answer is a plain one.", ("strategy",)
        )
        self.upstream = self._counter(
            "upstream_requests",
            "Attempts of runs' calls to model servers, by HTTP status, or cancelled, or error where it has none.",
            ("status",),
        )
        self.upstream_inflight = self.gauge("upstream_inflight", "Calls of runs that are at a model server.")
        self.tokens = self._counter(
            "tokens",
            "Tokens of runs: prompt, and cached of these; completion, and wasted of these.",
            ("kind", "model"),
        )

    def gauge(self, name: str, documentation: str) -> Gauge:
        """A gauge; of several processes the sum over those that live."""
        return Gauge(PREFIX + name, documentation, registry=self.registry, multiprocess_mode="livesum")

    def _counter(self, name: str, documentation: str, labels: tuple[str, ...]) -> Child:
        return _children(Counter(PREFIX + name, documentation, labels, registry=self.registry))

    def _histogram(
        self, name: str, documentation: str, labels: tuple[str, ...], buckets: tuple[float, ...] = SECONDS
    ) -> Child:
        registry = self.registry
        return _children(Histogram(PREFIX + name, documentation, labels, registry=registry, buckets=buckets))


def _children(metric: Any) -> Child:
    """The series of a metric; quicker than the library's own look-up."""
    known: dict[tuple[str, ...], Any] = {}

    def child(*values: str) -> Any:
        found = known.get(values)
        if found is None:
            found = known[values] = metric.labels(*values)
        return found

    return child
