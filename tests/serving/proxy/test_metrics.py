"""Metrics: what is counted, under which labels, and that several processes are counted as one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch import Budget, Run
from anabranch.orchestrator.errors import BackendOverloaded, BackendUnavailable, RequestRejected
from anabranch.serving.proxy.observers import counting
from anabranch.serving.proxy.observers.metrics import Metrics, forget_dead_workers
from anabranch.testing import Reply, ScriptedBackend
from engine import Do
from observed import passed_through, serve, skeleton
from proxy_server import serving
from upstream import Upstream

Figures = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """What a scrape gives."""

    def __init__(self, exposition: bytes) -> None:
        self.families = list(text_string_to_metric_families(exposition.decode()))
        self._figures: Figures = {
            (sample.name.removeprefix("anabranch_"), frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._figures.get((name, frozenset(labels.items())))

    def all(self, name: str) -> dict[str, float]:
        """The series of a metric, by the values of their labels."""
        return {
            " ".join(value for _, value in sorted(labels)): figure
            for (each, labels), figure in self._figures.items()
            if each == name
        }


def scrape(metrics: Metrics) -> Scrape:
    return Scrape(metrics.render()[0])


POINTS = [
    Reply.of(" one two", tokens=20, delay_s=2),
    Reply.of(" three", tokens=10, delay_s=3),
    Reply.of(" four", tokens=5, delay_s=1),
]


def test_a_run_is_counted_by_its_generations() -> None:
    """A skeleton run counts its four branches, their calls, and their tokens by kind and model."""
    metrics = Metrics()
    metrics.know_models(["scripted"])
    serve([metrics], skeleton(*POINTS), strategy="skeleton")
    seen = scrape(metrics)
    assert seen("requests_total", route="/v1/chat/completions", strategy="skeleton", status="200") == 1
    assert seen.all("branches_total") == {"stop skeleton": 4}
    assert seen.all("upstream_requests_total") == {"200": 4}
    assert seen.all("tokens_total") == {
        "prompt scripted": 130,
        "cached scripted": 20,
        "completion scripted": 65,
    }
    assert seen("requests_inflight") == seen("upstream_inflight") == 0
    assert seen("request_duration_seconds_sum", route="/v1/chat/completions", strategy="skeleton") == 4
    assert seen("ttft_seconds_count", strategy="skeleton") == 1
    assert seen.all("cancelled_total") == seen.all("fallbacks_total") == {}


def test_exposition_is_valid_and_typed() -> None:
    """Every family has our prefix, a help text and a type; its counters have no `_created` beside them."""
    metrics = Metrics()
    metrics.follow("queue_length", "Requests that wait.", lambda: 3)
    serve([metrics], skeleton(*POINTS), strategy="skeleton")
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    seen = Scrape(body)
    assert {family.type for family in seen.families} == {"counter", "gauge", "histogram"}
    assert all(family.name.startswith("anabranch_") and family.documentation for family in seen.families)
    assert b"_created" not in body
    assert seen("queue_length") == 3


def test_overhead_is_the_time_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run with calls from 0 to 2 s, 1 to 3 s and 3.5 to 5.5 s, half a second is overhead, and the quarter at its end."""
    monkeypatch.setattr(counting, "perf_counter", lambda: asyncio.get_running_loop().time())

    async def work(run: Run) -> None:
        first = run.generate(run.question)
        await asyncio.sleep(1)
        await run.generate(run.question)
        await first
        await asyncio.sleep(0.5)
        await run.generate(run.question)
        await asyncio.sleep(0.25)

    metrics = Metrics()
    backend = ScriptedBackend(lambda _: Reply.of("yes", delay_s=2))
    serve([metrics], backend, arguments={"strategy": Do(work)})
    seen = scrape(metrics)
    assert seen("overhead_seconds_count", strategy="sequential") == 1
    assert seen("overhead_seconds_sum", strategy="sequential") == 0.75


def test_each_choice_is_a_run() -> None:
    """n = 3 counts one request, three branches, three overheads and one first token."""
    metrics = Metrics()
    serve([metrics], ScriptedBackend(lambda _: Reply.of("a b", delay_s=1)), n=3)
    seen = scrape(metrics)
    assert seen.all("branches_total") == {"stop sequential": 3}
    assert seen("overhead_seconds_count", strategy="sequential") == 3
    assert seen("ttft_seconds_count", strategy="sequential") == 1
    assert sum(seen.all("requests_total").values()) == 1


def test_attempts_are_counted_by_status() -> None:
    """A call that is told to come back later, then fails, then succeeds is three attempts and one branch."""
    metrics = Metrics()
    replies = [
        Reply.failing(BackendOverloaded("later", status_code=429)),
        Reply.failing(BackendUnavailable("gone")),
        Reply.of("yes"),
    ]
    serve([metrics], ScriptedBackend(replies))
    seen = scrape(metrics)
    assert seen.all("upstream_requests_total") == {"429": 1, "502": 1, "200": 1}
    assert seen.all("branches_total") == {"stop sequential": 1}
    assert seen("upstream_inflight") == 0


def test_a_failed_generation_counts_what_it_wrote_as_wasted() -> None:
    """Tokens of a call that broke off are completion tokens, and wasted."""
    metrics = Metrics()
    metrics.know_models(["scripted"])
    request = serve([metrics], ScriptedBackend([Reply.failing(RequestRejected("no"), after="a b c")]))
    seen = scrape(metrics)
    assert request.status == 400
    assert seen.all("branches_total") == {"failed sequential": 1}
    assert seen.all("upstream_requests_total") == {"400": 1}
    assert seen.all("tokens_total") == {"wasted scripted": 3, "completion scripted": 3}
    assert seen("requests_total", route="/v1/chat/completions", strategy="sequential", status="400") == 1


def test_a_client_that_goes_away() -> None:
    """What it leaves is counted as cancelled, and is under way no more."""
    metrics = Metrics()
    serve([metrics], skeleton(*POINTS), strategy="skeleton", left_after_s=2.5)
    seen = scrape(metrics)
    assert seen("requests_total", route="/v1/chat/completions", strategy="skeleton", status="499") == 1
    assert seen.all("cancelled_total") == {"client": 1}
    assert seen.all("branches_total") == {"stop skeleton": 2, "cancelled skeleton": 2}
    assert seen.all("upstream_requests_total") == {"200": 2, "cancelled": 2}
    assert seen("requests_inflight") == seen("upstream_inflight") == 0


def test_a_run_at_its_limit() -> None:
    """A run that its deadline ended is counted as cancelled by it."""
    metrics = Metrics()
    backend = ScriptedBackend([Reply.of("a b c", delay_s=1, chunk_s=5)])
    serve([metrics], backend, arguments={"budget": Budget(deadline_s=3)})
    seen = scrape(metrics)
    assert seen.all("cancelled_total") == {"deadline": 1}
    assert seen.all("branches_total") == {"deadline sequential": 1}


def test_a_generation_that_never_began() -> None:
    """What the budget refused is counted apart from what failed at the server."""
    metrics = Metrics()
    arguments = {"budget": Budget(branches=2)}
    serve([metrics], skeleton(*POINTS), strategy="skeleton", arguments=arguments)
    seen = scrape(metrics)
    assert seen.all("branches_total") == {"stop skeleton": 2, "unstarted skeleton": 2}
    assert seen.all("cancelled_total") == {"budget": 1}
    assert seen.all("upstream_requests_total") == {"200": 2}


def test_more_cached_than_prompted() -> None:
    """Some servers count cached tokens of all choices together: no more are counted than the prompt has."""
    metrics = Metrics()
    serve([metrics], ScriptedBackend([Reply(chunks=("a",), prompt_tokens=10, cached_tokens=12)]))
    assert scrape(metrics).all("tokens_total") == {
        "prompt other": 10,
        "cached other": 10,
        "completion other": 1,
    }


def test_a_streamed_run_has_one_first_token() -> None:
    """Its first token is that of its answer; the first byte, which may be a keep-alive, does not count."""
    metrics = Metrics()
    serve([metrics], ScriptedBackend([Reply.of("a b")]), stream=True, first_byte_s=99.0)
    seen = scrape(metrics)
    assert seen("ttft_seconds_count", strategy="sequential") == 1
    assert (seen("ttft_seconds_sum", strategy="sequential") or 0) < 99


def test_a_fallback_is_counted() -> None:
    """A strategy that does not apply is counted under its own name."""
    metrics = Metrics()
    backend = ScriptedBackend(lambda _: Reply.of("plain"))
    serve([metrics], backend, strategy="skeleton", arguments={"max_tokens": 5})
    assert scrape(metrics).all("fallbacks_total") == {"skeleton": 1}


def test_while_a_call_is_at_the_server() -> None:
    """The gauges show what is under way."""
    metrics = Metrics()
    shown: list[tuple[float | None, float | None]] = []

    def reply(_: object) -> Reply:
        seen = scrape(metrics)
        shown.append((seen("requests_inflight"), seen("upstream_inflight")))
        return Reply.of("yes")

    serve([metrics], ScriptedBackend(reply))
    assert shown == [(1, 1)]


# Requests that pass through


def test_a_request_that_passes_through() -> None:
    """It is counted under the strategy `none`; a stream of it has a first token, an error has not."""
    metrics = Metrics()
    passed_through([metrics])
    passed_through([metrics], stream=True)
    passed_through([metrics], stream=True, status=429)
    seen = scrape(metrics)
    assert seen("requests_total", route="/v1/chat/completions", strategy="none", status="200") == 2
    assert seen("requests_total", route="/v1/chat/completions", strategy="none", status="429") == 1
    assert seen("ttft_seconds_count", strategy="none") == 1
    assert seen("ttft_seconds_sum", strategy="none") == pytest.approx(0.2)
    assert seen.all("tokens_total") == {}


def test_an_error_in_mid_stream() -> None:
    """A reply that began well and ended with an error is counted as broken, though its status is 200."""
    metrics = Metrics()
    passed_through([metrics], stream=True, error_code="bad_gateway")
    passed_through([metrics], status=502, error_code="bad_gateway")
    passed_through([metrics], status=503, error_code="shutdown")
    seen = scrape(metrics)
    assert seen.all("broken_streams_total") == {"none": 1}
    assert seen.all("cancelled_total") == {"shutdown": 1}


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/org/name", "/v1/models/{id}"),
        ("/v1/anabranch/runs/abc", "/v1/anabranch/runs/{id}"),
        ("/v1/audio/speech", "/v1/{path}"),
        ("/metrics", "/metrics"),
        ("/wp-login.php", "other"),
    ],
)
def test_a_path_is_never_a_label(path: str, route: str) -> None:
    """What a client may choose freely is shown as the pattern that it matches."""
    metrics = Metrics()
    passed_through([metrics], path=path)
    assert scrape(metrics)("requests_total", route=route, strategy="none", status="200") == 1


def test_a_model_that_the_server_does_not_list_is_no_label() -> None:
    """Names that clients make up do not become series."""
    metrics = Metrics()
    metrics.know_models(["scripted"])
    for name in ("made-up", "scripted"):
        serve([metrics], ScriptedBackend([Reply.of("a b")]), arguments={"model": name})
    assert scrape(metrics).all("tokens_total") == {
        "prompt other": 10,
        "completion other": 2,
        "prompt scripted": 10,
        "completion scripted": 2,
    }


# Through the proxy, and in several processes


async def test_behind_a_real_proxy(upstream: Upstream) -> None:
    """Requests over HTTP are counted as the proxy served them."""
    metrics = Metrics()
    async with serving(upstream.url, observers=[metrics]) as client:
        assert (await client.chat()).status == 200
        assert (await client.chat("stub@sequential")).status == 200
        assert (await client.chat("stub@sequenzial")).status == 400
    seen = scrape(metrics)
    assert seen.all("requests_total") == {
        "/v1/chat/completions 200 none": 1,
        "/v1/chat/completions 200 sequential": 1,
        "/v1/chat/completions 400 none": 1,
    }
    assert seen.all("branches_total") == {"stop sequential": 1}
    assert seen("requests_inflight") == 0


WORKER = """
    import sys
    from anabranch.serving.proxy.observers.metrics import Metrics
    from anabranch.serving.proxy.requests import RequestInfo

    metrics = Metrics()
    metrics.follow("queue_length", "Requests that wait.", lambda: 2)
    for number in range(int(sys.argv[1])):
        request = RequestInfo(request_id="r", path="/v1/models", status=200, wall_s=0.2)
        metrics.request_began(request)
        if number:
            metrics.request_ended(request)
    print("ready", flush=True)
    sys.stdin.readline()
    sys.stdout.write(metrics.render()[0].decode())
"""


def worker(folder: Path, requests: int) -> subprocess.Popen[str]:
    """A process that has served so many requests and has one under way; it tells what it shows when told to."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), str(requests)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_are_counted_as_one(tmp_path: Path) -> None:
    """Whichever is asked shows the sums over all; the gauges of one that has ended go, its counters stay."""
    key = {"route": "/v1/models", "strategy": "none"}
    with worker(tmp_path, 3) as one, worker(tmp_path, 5) as two:
        assert one.stdout is not None
        assert two.stdout is not None
        assert one.stdout.readline() == two.stdout.readline() == "ready\n"
        first = Scrape(one.communicate("\n")[0].encode())
        second = Scrape(two.communicate("\n")[0].encode())
    assert first("requests_total", **key, status="200") == second("requests_total", **key, status="200") == 6
    assert first("request_duration_seconds_count", **key) == 6
    assert first("request_duration_seconds_sum", **key) == pytest.approx(1.2)
    assert (first("requests_inflight"), first("queue_length")) == (2, 4)
    assert (second("requests_inflight"), second("queue_length")) == (1, 2)
    forget_dead_workers(str(tmp_path))
    assert list(tmp_path.glob("gauge_*")) == []
    assert len(list(tmp_path.glob("counter_*"))) == 2
