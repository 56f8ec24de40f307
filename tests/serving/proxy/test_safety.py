"""Who may ask what, where keys go, and that nothing changes over the wire."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from anabranch.serving.proxy.server import read_keys
from anabranch.serving.proxy.settings import Settings, digest
from proxy_server import QUESTION, Client, chat, serving
from upstream import Upstream
from upstream_replies import MODEL, Ordinary, listing

KEYS = frozenset(map(digest, ("first-key", "second-key")))
PATHS = ["/v1/models", "/v1/models/stub", "/v1/files", "/v1/anabranch/runs"]


@pytest.fixture(autouse=True)
def upstream_key(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> str:
    """The key that the model server wants, as `anabranch serve --backend` has it in the environment."""
    monkeypatch.setenv("ANABRANCH_BACKEND", upstream.url)
    monkeypatch.setenv("ANABRANCH_API_KEY", "upstream-secret")
    return "upstream-secret"


@pytest.mark.parametrize("key", ["first-key", "second-key"])
async def test_each_key_opens(key: str, upstream: Upstream) -> None:
    """Any of several keys is as good as the other."""
    async with serving(upstream.url, api_keys=KEYS) as proxy:
        answer = await proxy.chat(headers={"authorization": f"Bearer {key}"})
    assert answer.status == 200


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer first-key2",
        "Bearer first-ke",
        "Basic first-key",
        "first-key",
        f"Bearer {digest('first-key')}",
        "Bearer first-key,second-key",
        "Bearer ü",
    ],
)
async def test_anything_else_does_not(header: str | None, upstream: Upstream) -> None:
    """No key, a wrong key, or a digest in place of one: 401 in the envelope, before anything of the body counts."""
    given = {} if header is None else {"authorization": header}
    async with serving(upstream.url, api_keys=KEYS) as proxy:
        for model in ("stub", "stub@skeleton", "stub@nonsense"):
            answer = await proxy.chat(model, headers=given)
            assert answer.status == 401
            assert answer.error["code"] == "invalid_api_key"
            assert answer.error["type"] == "authentication_error"
            assert "www-authenticate" in answer.headers
        for path in PATHS:
            assert (await proxy.ask(path, headers=given)).status == 401
    assert upstream.requests == upstream.listings == []


async def test_what_is_open(upstream: Upstream) -> None:
    """Health and version want no key, and tell nothing that is secret."""
    async with serving(upstream.url, api_keys=KEYS) as proxy:
        for path in ("/health", "/ready", "/version", "/openapi.json"):
            answer = await proxy.ask(path)
            assert answer.status == 200, path
            assert b"secret" not in answer.content


async def test_keys_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come from a file, one a line, and from a variable; only their digests are kept."""
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst-key\n\n  second-key  \n")
    monkeypatch.setenv("ANABRANCH_PROXY_KEYS", "third-key,")
    keys = read_keys(file)
    assert keys == {digest("first-key"), digest("second-key"), digest("third-key")}
    assert "first-key" not in Settings(api_keys=keys).model_dump_json()


@pytest.mark.parametrize("model", ["stub", "stub@sequential", "stub@skeleton"])
@pytest.mark.parametrize("keys", [frozenset(), KEYS], ids=["open", "with keys"])
async def test_the_servers_key_goes_to_the_server(model: str, keys: frozenset[str], upstream: Upstream) -> None:
    """Upstream goes the server's own key; the client's goes nowhere."""
    async with serving(upstream.url, api_keys=keys) as proxy:
        assert (await proxy.chat(model, headers={"authorization": "Bearer first-key"})).status == 200
    for request in upstream.requests + upstream.listings:
        assert request.header("authorization") == "Bearer upstream-secret"
        assert "first-key" not in str(request.headers)


async def test_the_clients_key_when_so_configured(upstream: Upstream) -> None:
    """With `forward_client_key` plain requests go with the client's key, and without one they go without ours."""
    async with serving(upstream.url, forward_client_key=True) as proxy:
        await proxy.chat(headers={"authorization": "Bearer theirs"})
        await proxy.chat()
    assert [each.header("authorization") for each in upstream.requests] == ["Bearer theirs", None]


@pytest.mark.parametrize("model", ["stub", "stub@skeleton"])
async def test_backends_that_are_not_listed(model: str, upstream: Upstream) -> None:
    """A request cannot send the proxy anywhere: not by body, header, or path."""
    async with Upstream(Ordinary(), listing(MODEL)) as other, serving(upstream.url) as proxy:
        answer = await proxy.chat(model, anabranch={"backend": other.url})
        assert answer.status == 403
        assert answer.error["type"] == "permission_error"
        host = other.url.removeprefix("http://").removesuffix("/v1")
        headers = {"x-its-endpoint": other.url, "x-anabranch-backend": other.url, "x-forwarded-host": host}
        assert (await proxy.chat(model, headers=headers)).status == 200
        await proxy.ask(f"/v1/@{host}/v1/models")
        await proxy.ask(f"/v1//{host}/v1/models")
        await proxy.ask(f"/v1/..//{host}/v1/models")
        await proxy.ask(f"/v1/http://{host}/v1/models")
        assert other.requests == other.listings == []


@pytest.mark.parametrize("model", ["stub", "stub@skeleton"])
async def test_a_listed_backend(model: str, upstream: Upstream) -> None:
    """A server on the list answers where it is named."""
    async with Upstream(Ordinary(), listing(MODEL)) as other:
        async with serving(upstream.url, allowed_backends=(other.url,)) as proxy:
            assert (await proxy.chat(model, anabranch={"backend": other.url})).status == 200
        assert other.requests
        assert not upstream.requests
        assert all("backend" not in json.dumps(body) for body in other.bodies)


@pytest.mark.parametrize("allowed", ["other", "same"])
async def test_the_key_is_not_for_every_server(allowed: str, upstream: Upstream) -> None:
    """The server's key goes to the configured host only: another one on the list does not get it."""
    async with Upstream(Ordinary(), listing(MODEL)) as other:
        url = other.url if allowed == "other" else upstream.url
        async with serving(upstream.url, allowed_backends=(url,)) as proxy:
            for model in ("stub", "stub@skeleton"):
                await proxy.chat(model, anabranch={"backend": url})
        for request in other.requests + other.listings:
            assert "upstream-secret" not in str(request.headers)
        for request in upstream.requests:
            assert request.header("authorization") == "Bearer upstream-secret"


async def test_redirects_are_not_followed(upstream: Upstream) -> None:
    """A server that points elsewhere does not send our key there."""
    from upstream_forms import content_of

    async with Upstream(Ordinary(), listing(MODEL)) as other:
        upstream.answer = content_of(b"", 307, "text/plain", location=other.url + "/chat/completions")
        async with serving(upstream.url) as proxy:
            assert (await proxy.chat()).status == 502
            assert other.requests == []
            await proxy.chat("stub@sequential")
        assert not [each for each in other.requests if "upstream-secret" in str(each.headers)]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_no_configuration_over_the_wire(method: str, proxy: Client, upstream: Upstream) -> None:
    """There is no path that changes the proxy."""
    for path in (
        "/configure",
        "/settings",
        "/metrics",
        "/health",
        "/",
    ):
        answer = await proxy.ask(path, {"backend": "http://127.0.0.1:1/v1"}, method=method)
        assert answer.status in (404, 405), path
        assert answer.error
    assert upstream.requests == []
    assert (await proxy.chat()).status == 200


async def test_one_request_leaves_nothing_for_the_next(proxy: Client, upstream: Upstream) -> None:
    """Parameters of one request are in no other one."""
    await proxy.chat("stub@skeleton", temperature=0.1, top_k=3, anabranch={"params": {"max_points": 2}})
    upstream.requests.clear()
    await proxy.chat("stub@skeleton")
    assert not [body for body in upstream.bodies if body.get("top_k") or body["temperature"] == 0.1]
    assert len(upstream.requests) == 4


@pytest.mark.parametrize("model", ["stub", "stub@skeleton"])
async def test_secrets_are_not_logged(model: str, upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    """No key is in any log, at any level, in good times and bad; nor is the conversation."""
    from upstream_forms import page

    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    async with serving(upstream.url, api_keys=KEYS) as proxy:
        for answer in (Ordinary(), page(500)):
            upstream.answer = answer
            await proxy.chat(model, headers={"authorization": "Bearer first-key"})
            await proxy.chat(model, headers={"authorization": "Bearer wrong-key"})
    for secret in ("first-key", "wrong-key", "upstream-secret"):
        assert secret not in caplog.text
    ours = "\n".join(str(r.getMessage()) for r in caplog.records if r.name.startswith("anabranch"))
    assert QUESTION not in ours


async def test_request_id(proxy: Client) -> None:
    """A request id is taken over and echoed, on errors too; one that is none is replaced."""
    assert (await proxy.chat(headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    assert (await proxy.chat("stub@skeleton", headers={"x-request-id": "mine-2"})).headers[
        "x-request-id"
    ] == "mine-2"
    refused = await proxy.ask("/v1/chat/completions", b"{", headers={"x-request-id": "mine-3"})
    assert refused.headers["x-request-id"] == "mine-3"
    assert (await proxy.ask("/nowhere")).headers["x-request-id"]
    for odd in ("", "a b", "x" * 200, "ü"):
        given = (await proxy.chat(headers={"x-request-id": odd})).headers.getall("x-request-id")  # type: ignore[attr-defined]
        assert len(given) == 1
        assert given != [odd]


async def test_paths_that_are_not_there(proxy: Client, upstream: Upstream) -> None:
    """404 and 405 are JSON in the envelope, with `Allow` where another method would do."""
    for path in ("/", "/v2/chat/completions", "/chat/completions", "/v1", "/favicon.ico"):
        answer = await proxy.ask(path)
        assert answer.status == 404, path
        assert answer.error["code"] == "not_found"
    for method, path in (
        ("POST", "/version"),
        ("DELETE", "/ready"),
        ("PUT", "/health"),
        ("POST", "/openapi.json"),
    ):
        answer = await proxy.ask(path, method=method)
        assert answer.status == 405, path
        assert answer.error["code"] == "method_not_allowed"
        assert answer.headers["allow"]
    assert upstream.requests == []


async def test_head(proxy: Client) -> None:
    """HEAD gets the headers of GET, and no body."""
    for path in ("/health", "/version"):
        answer = await proxy.ask(path, method="HEAD")
        assert (answer.status, answer.content) == (200, b"")


async def test_health_asks_nothing(proxy: Client, upstream: Upstream) -> None:
    """Whether the proxy lives is known without the model server."""
    await upstream.stop()
    assert (await proxy.ask("/health")).json == {"status": "ok"}
    answer = await proxy.ask("/ready")
    assert answer.status == 503
    assert answer.error["code"] == "not_ready"
    assert (await proxy.ask("/v1/chat/completions", chat())).status == 502
