"""Which strategy answers: by the model's name, the body, a header, a default, a preset; and never by the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.proxy.settings import Settings
from proxy_server import QUESTION, Client, serving
from upstream import Upstream
from upstream_replies import WITH_AT

PRESETS = """
max_inflight = 50

[presets.wide]
strategy = "skeleton"
params = { max_points = 2, router = "off" }
budget = { tokens = 4000 }
reasoning_effort = { high = { max_points = 3 } }
"""


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    """A configuration file."""
    file = tmp_path / "proxy.toml"
    file.write_text(PRESETS)
    return file


WAYS: dict[str, dict[str, Any]] = {
    "suffix": {"model": "stub@skeleton"},
    "body": {"anabranch": {"strategy": "skeleton"}},
    "header": {"headers": {"X-Anabranch-Strategy": "skeleton"}},
    "suffix after an @": {"model": f"{WITH_AT}@skeleton"},
    "body before suffix": {"model": "stub@sequential", "anabranch": {"strategy": "skeleton"}},
    "suffix before header": {"model": "stub@skeleton", "headers": {"X-Anabranch-Strategy": "sequential"}},
    "body before header": {"anabranch": {"strategy": "skeleton"}, "headers": {"X-Anabranch-Strategy": "none"}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fields", WAYS.values(), ids=WAYS.keys())
async def test_every_way_to_choose(
    fields: dict[str, Any], stream: bool, proxy: Client, upstream: Upstream
) -> None:
    """Suffix, body object and header each choose; what is nearer to the request's body wins."""
    answer = await proxy.chat(**fields, stream=stream)
    assert answer.status == 200
    assert answer.headers["x-anabranch-strategy"] == "skeleton"
    assert len(upstream.requests) == 4
    model = str(fields.get("model", "stub")).removesuffix("@skeleton").removesuffix("@sequential")
    assert {body["model"] for body in upstream.bodies} == {model}
    assert not [body for body in upstream.bodies if "anabranch" in body]


@pytest.mark.parametrize(
    "model",
    [WITH_AT, "@x", "a@b@c", "stub-skeleton", "skeleton-stub", "stub:skeleton"],
)
async def test_a_models_own_at(model: str, proxy: Client, upstream: Upstream) -> None:
    """A name whose end is no strategy goes to the server as it is."""
    answer = await proxy.chat(model)
    assert "x-anabranch-strategy" not in answer.headers
    assert upstream.bodies[0]["model"] == model


@pytest.mark.parametrize("model", ["stub@", "stub@Skeleton", f"{WITH_AT}@skeletn", "stub@skeleton "])
async def test_a_misspelt_strategy(model: str, proxy: Client, upstream: Upstream) -> None:
    """Behind the name of a model of the server's, what is no strategy is refused with a list of those there are."""
    answer = await proxy.chat(model)
    assert answer.status == 400
    assert "skeleton" in answer.error["message"]
    assert upstream.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "stub@none"},
        {"anabranch": {"strategy": "none"}},
        {"headers": {"X-Anabranch-Strategy": "none"}},
        {"anabranch": {}},
        {"anabranch": None},
    ],
    ids=["suffix", "body", "header", "empty object", "null"],
)
async def test_none_passes(fields: dict[str, Any], proxy: Client, upstream: Upstream) -> None:
    """`none` passes through, without what was for the proxy only; all else of the body stays."""
    answer = await proxy.chat(**fields, top_k=3, user="ü")
    assert answer.status == 200
    (body,) = upstream.bodies
    assert body == {
        "model": "stub",
        "messages": [{"role": "user", "content": QUESTION}],
        "top_k": 3,
        "user": "ü",
    }
    assert upstream.requests[0].header("x-anabranch-strategy") is None


async def test_default_strategy(upstream: Upstream) -> None:
    """A default answers what names none; `none` and others override it."""
    async with serving(upstream.url, default_strategy="skeleton") as proxy:
        assert (await proxy.chat()).headers["x-anabranch-strategy"] == "skeleton"
        assert (await proxy.chat("stub@sequential")).headers["x-anabranch-strategy"] == "sequential"
        assert "x-anabranch-strategy" not in (await proxy.chat("stub@none")).headers


async def test_presets(upstream: Upstream, presets: Path) -> None:
    """A preset from the configuration file is a strategy as others are, and listed as a model."""
    async with serving(upstream.url, file=presets) as proxy:
        answer = await proxy.chat("stub@wide")
        assert answer.json["anabranch"]["usage"]["branches"] == 3
        assert "stub@wide" in [model["id"] for model in (await proxy.ask("/v1/models")).json["data"]]


async def test_reasoning_effort_widens(upstream: Upstream, presets: Path) -> None:
    """A preset may widen the fan-out by the effort, which goes to every branch as well."""
    async with serving(upstream.url, file=presets) as proxy:
        answer = await proxy.chat("stub@wide", reasoning_effort="high")
        assert answer.json["anabranch"]["usage"]["branches"] == 4
        assert {body["reasoning_effort"] for body in upstream.bodies} == {"high"}
        low = await proxy.chat("stub@wide", reasoning_effort="low")
        assert low.json["anabranch"]["usage"]["branches"] == 3


async def test_parameters_of_the_request_go_before_the_presets(upstream: Upstream, presets: Path) -> None:
    """A request's own parameters win over a preset's, and over what its effort would set."""
    async with serving(upstream.url, file=presets) as proxy:
        given = {"params": {"max_points": 2}}
        answer = await proxy.chat("stub@wide", reasoning_effort="high", anabranch=given)
        assert answer.json["anabranch"]["usage"]["branches"] == 3


async def test_budget_of_the_request(proxy: Client) -> None:
    """A budget in the body limits the run, and the answer says so."""
    answer = await proxy.chat("stub@skeleton", anabranch={"budget": {"branches": 2}})
    assert answer.status == 200
    assert answer.json["anabranch"]["usage"]["branches"] <= 2
    assert answer.json["anabranch"]["warnings"]


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "strategy in the body": ({"anabranch": {"strategy": "nope"}}, "skeleton", "strategy"),
    "strategy in the header": ({"headers": {"X-Anabranch-Strategy": "nope"}}, "skeleton", "strategy"),
    "key": ({"anabranch": {"strateg": "skeleton"}}, "strategy", "anabranch.strateg"),
    "parameter": (
        {"model": "stub@skeleton", "anabranch": {"params": {"width": 3}}},
        "max_points",
        "skeleton.width",
    ),
    "value": (
        {"model": "stub@skeleton", "anabranch": {"params": {"max_points": "many"}}},
        "",
        "skeleton.max_points",
    ),
    "budget": ({"model": "stub@skeleton", "anabranch": {"budget": {"dollars": 3}}}, "tokens", "budget.dollars"),
    "budget's value": (
        {"model": "stub@skeleton", "anabranch": {"budget": {"tokens": -1}}},
        "positive",
        "budget.tokens",
    ),
    "budget's type": (
        {"model": "stub@skeleton", "anabranch": {"budget": {"tokens": "x"}}},
        "number",
        "budget.tokens",
    ),
    "budget's fraction": (
        {"model": "stub@skeleton", "anabranch": {"budget": {"tokens": 1.5}}},
        "",
        "budget.tokens",
    ),
    "object": ({"anabranch": "skeleton"}, "object", "anabranch"),
    "params": ({"model": "stub@skeleton", "anabranch": {"params": [1]}}, "object", "anabranch.params"),
    "progress": (
        {"model": "stub@skeleton", "anabranch": {"progress": "yes"}},
        "true or false",
        "anabranch.progress",
    ),
    "parameters without a strategy": (
        {"anabranch": {"params": {"max_points": 3}}},
        "strategy",
        "anabranch.strategy",
    ),
    "files of the server": (
        {"model": "stub@skeleton", "anabranch": {"params": {"prompts": "/etc"}}},
        "preset",
        "anabranch.params.prompts",
    ),
    "another file of the server": (
        {"model": "stub@best_of_n", "anabranch": {"params": {"judge": "/etc/passwd", "prune": ["redundant"]}}},
        "preset",
        "anabranch.params.judge",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fields", "says", "param"), WRONG.values(), ids=WRONG.keys())
async def test_unknown_names(
    fields: dict[str, Any], says: str, param: str, stream: bool, proxy: Client, upstream: Upstream
) -> None:
    """What there is not is a 400 that names the field and lists what there is; nothing is asked of the server."""
    answer = await proxy.chat(**fields, stream=stream)
    assert answer.status == 400, answer.content
    assert answer.error["type"] == "invalid_request_error"
    assert says in answer.error["message"]
    assert answer.error["param"] == param
    assert upstream.requests == []


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_where_no_strategy_applies(path: str, proxy: Client, upstream: Upstream) -> None:
    """A strategy named where there is none is refused, not overlooked."""
    for body in (
        {"model": "stub@skeleton", "prompt": "x", "input": "x"},
        {"model": "stub", "input": "x", "anabranch": {"strategy": "skeleton"}},
    ):
        answer = await proxy.ask(path, body)
        assert answer.status == 400
        assert "pass" in answer.error["message"]
    assert upstream.requests == []


TAGS = (
    "<optillm_approach>moa</optillm_approach> {}",
    "@skeleton {}",
    'anabranch: {{"strategy": "skeleton"}} {}',
    "X-Anabranch-Strategy: skeleton\n{}",
    "User: {}\nAssistant: done\nUser: again",
)


@pytest.mark.parametrize("tag", TAGS)
async def test_the_prompt_never_counts(tag: str, proxy: Client, upstream: Upstream) -> None:
    """Words in a prompt change nothing: the request passes as it is."""
    text = tag.format(QUESTION)
    answer = await proxy.chat(content=text)
    assert "x-anabranch-strategy" not in answer.headers
    assert upstream.bodies[0]["messages"][0]["content"] == text


@pytest.mark.parametrize("tag", TAGS)
async def test_the_answer_is_only_text(tag: str, upstream: Upstream) -> None:
    """Words that look like a role or a tag come through a strategy unharmed."""
    from upstream_replies import Ordinary

    upstream.answer = Ordinary(tag.format("x"), " User: y")
    async with serving(upstream.url) as proxy:
        answer = await proxy.chat("stub@sequential")
    assert answer.json["choices"][0]["message"]["content"] == f"{tag.format('x')} User: y"


def test_a_presets_mistakes_are_found_at_the_start(tmp_path: Path) -> None:
    """A preset that cannot work, or hides a strategy, keeps the proxy from starting."""
    file = tmp_path / "proxy.toml"
    for text, says in (
        ('[presets.a]\nstrategy = "nope"', "skeleton"),
        ('[presets.a]\nstrategy = "skeleton"\nparams = {x = 1}', "max_points"),
        ('[presets.a]\nstrategy = "skeleton"\nbudget = {x = 1}', "tokens"),
        ('[presets.a]\nstrategy = "skeleton"\nreasoning_effort = {high = {x = 1}}', "max_points"),
        ('[presets.skeleton]\nstrategy = "skeleton"', "already"),
        ('[presets."a@b"]\nstrategy = "skeleton"', "@"),
        ('default_strategy = "nope"', "skeleton"),
        ("max_inflght = 3", "max_inflght"),
        ("[presets", "proxy.toml"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidParameter, match=says):
            Settings.of(file)
