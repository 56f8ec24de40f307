"""The pure parts of the OpenAI backend: addresses, dialects, stop strings, labels, request bodies."""

from __future__ import annotations

import math
from typing import Any

import pytest

from anabranch.orchestrator.backend import Call, Capabilities, PrefixSharing, TokenLogprob
from anabranch.orchestrator.branch import Branch
from anabranch.orchestrator.errors import InvalidParameter
from anabranch.orchestrator.sampling import Constraint, Sampling
from anabranch.serving.backends.openai.address import parse
from anabranch.serving.backends.openai.dialects import DIALECTS, OPENAI, SGLANG, VLLM, describe, recognise
from anabranch.serving.backends.openai.labels import label_logprobs
from anabranch.serving.backends.openai.refusals import Refusals
from anabranch.serving.backends.openai.request import build
from anabranch.serving.backends.stops import StopScanner


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("https://host/api/v3/", "https://host/api/v3"),
        ("openai://host:8000/v1", "http://host:8000/v1"),
        ("openai://host:8000", "http://host:8000/v1"),
        ("openai:", "https://api.openai.com/v1"),
        ("openai://", "https://api.openai.com/v1"),
        ("openai:?kind=other", "https://api.openai.com/v1"),
    ],
)
def test_base_url(url: str, base: str) -> None:
    """A path that is given stays as it is, and an empty one means /v1."""
    assert parse(url, {}).base_url == base


def test_environment_names_the_server_and_the_key() -> None:
    """`openai:` alone is $OPENAI_BASE_URL, and its key goes there."""
    address = parse("openai:", {"OPENAI_BASE_URL": "http://gate:1/v1", "OPENAI_API_KEY": "k"})
    assert (address.base_url, address.api_key) == ("http://gate:1/v1", "k")


def test_only_openai_itself_needs_a_key() -> None:
    """Without a key other servers get a placeholder, and OpenAI's service none."""
    assert parse("http://host/v1", {}).api_key == "EMPTY"
    assert parse("openai:", {}).api_key is None


def test_secrets_are_not_shown() -> None:
    """Neither the name nor the repr of an address shows a key or a password."""
    address = parse("http://user:secret@host/v1?kind=vllm&key=K", {"K": "hidden"})
    assert address.name == "http://host/v1"
    assert address.api_key == "hidden"
    assert "hidden" not in repr(address)
    assert address.kind == "vllm"


@pytest.mark.parametrize(
    "url", ["http://", "ftp://host/v1", "http://host:port/v1", "http://h?kind=x", "http://h?a=1"]
)
def test_bad_urls(url: str) -> None:
    """What is no address is refused before anything is asked of it."""
    with pytest.raises(InvalidParameter, match="backend"):
        parse(url, {})


def test_servers_are_recognised_by_the_owner_of_their_models() -> None:
    """SGLang, vLLM and llama.cpp sign their models; anybody else is 'other'."""
    for name in ("sglang", "vllm", "llamacpp"):
        assert recognise([{"id": "m", "owned_by": name}]) is DIALECTS[name]
    assert recognise([{"id": "m", "owned_by": "library"}]).name == recognise([]).name == "other"


def test_context_length_is_that_of_the_slots() -> None:
    """llama.cpp's context is the one that it was started with, and its slots are its concurrency."""
    props = {"total_slots": 3, "default_generation_settings": {"n_ctx": 512}}
    found = describe(DIALECTS["llamacpp"], [{"id": "m", "meta": {"n_ctx_train": 8192}}], props)
    assert (found.context_length, found.max_concurrency, found.models) == (512, 3, ("m",))


def test_prefix_sharing_by_kind() -> None:
    """On SGLang and vLLM a leader goes ahead; nothing is said of the others."""
    shared = {name: dialect.capabilities.prefix_sharing for name, dialect in DIALECTS.items()}
    assert shared["sglang"] is PrefixSharing.LEADER
    assert shared["vllm"] is PrefixSharing.LEADER
    assert {shared[name] for name in ("llamacpp", "openai", "other")} == {PrefixSharing.NONE}


@pytest.mark.parametrize("pieces", [["one STOP two"], list("one STOP two"), ["one S", "TOP", " two"]])
def test_stop_is_found_however_the_text_is_cut(pieces: list[str]) -> None:
    """The chunking of a stream does not change where it stops."""
    scanner, kept = StopScanner(("STOP", "two")), ""
    for piece in pieces:
        kept += scanner.feed(piece)
        if scanner.matched:
            break
    assert (kept, scanner.matched) == ("one ", "STOP")


def test_earliest_and_then_longest_stop_wins() -> None:
    """Of stop strings at one place the longest counts, and an earlier one comes first."""
    scanner = StopScanner(("\n", "\n\n", "z"))
    assert (scanner.feed("a\n\nz"), scanner.matched) == ("a", "\n\n")


def test_nothing_is_held_back_without_need() -> None:
    """Only what may begin a stop string waits for the next piece."""
    scanner = StopScanner(("</end>",))
    assert scanner.feed("a <b") == "a <b"
    assert scanner.feed(" </e") == " "
    assert scanner.feed("x") == "</ex"
    assert scanner.rest() == ""


def test_variants_of_a_label_add_up() -> None:
    """White space does not count and case does; what is not among the alternatives is bounded by the least of them."""
    top = ((" Yes", math.log(0.4)), ("Yes", math.log(0.2)), ("no", math.log(0.1)), ("N", math.log(0.05)))
    scores = label_logprobs((" Yes", "No", "Maybe"), TokenLogprob(token="Yes", logprob=top[1][1], top=top))
    assert scores[" Yes"] == pytest.approx(math.log(0.6))
    assert scores["No"] == pytest.approx(math.log(0.05))
    assert scores["Maybe"] == pytest.approx(math.log(0.05))


def body(kind: str, branch: Branch | None = None, **wanted: Any) -> dict[str, Any]:
    call = Call(rid="f" * 32, branch=branch or Branch.of("?"), **wanted)
    return build(call, "m", DIALECTS[kind], Refusals())


def test_content_parts_pass_through() -> None:
    """Images, names and other fields of a message reach the server as they came."""
    wire = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}], "name": "ann"}
    assert body("other", Branch.of([wire]))["messages"] == [wire]


def test_token_cap_by_kind() -> None:
    """OpenAI's own service gets the new name of the cap, all others the old one."""
    assert body("openai", max_tokens=5)["max_completion_tokens"] == 5
    assert body("sglang", max_tokens=5)["max_tokens"] == 5


def test_continuation_by_kind() -> None:
    """A begun turn is the last message, with the flags where the server wants them."""
    branch = Branch.of("?").say("So")
    for kind, flags in (("sglang", True), ("vllm", True), ("llamacpp", False)):
        sent = body(kind, branch)
        assert sent["messages"][-1] == {"role": "assistant", "content": "So"}
        assert ("continue_final_message" in sent) is flags


def test_constraints_by_kind() -> None:
    """Each kind of server is asked for a regular expression in its own words."""
    regex = Constraint(kind="regex", source="a+")
    assert body("sglang", constraint=regex)["regex"] == "a+"
    assert body("vllm", constraint=regex)["structured_outputs"] == {"regex": "a+"}
    assert OPENAI.capabilities.constraints == {"json_schema"}


def test_more_stops_than_a_server_takes_are_not_sent() -> None:
    """Beyond the server's limit the stop strings are looked for on our side."""
    assert body("sglang", stop=("a",))["stop"] == ["a"]
    assert "stop" not in body("sglang", stop=tuple("abcdefghijklmnopqrstuvwxyzABCDEFGH"))


def test_repetition_penalty_by_kind() -> None:
    """llama.cpp knows the repetition penalty by another name, and would ignore the common one."""
    assert body("llamacpp", sampling=Sampling(repetition_penalty=1.1))["repeat_penalty"] == 1.1
    assert body("vllm", sampling=Sampling(repetition_penalty=1.1))["repetition_penalty"] == 1.1


def test_extra_parameters_win() -> None:
    """What the caller put into `extra` is sent as it stands."""
    sent = body("sglang", sampling=Sampling(top_k=3, extra={"min_tokens": 4}))
    assert (sent["top_k"], sent["min_tokens"]) == (3, 4)


def test_refusals_take_capabilities_away() -> None:
    """What a server refused is no longer declared."""
    learned = Refusals(fields={"continue_final_message", "regex", "logprobs"})
    left = learned.reduce(SGLANG.capabilities)
    assert (left.prefill, left.top_logprobs, left.labels) == (False, 0, False)
    assert left.constraints == {"json_schema", "ebnf"}
    assert Refusals().reduce(VLLM.capabilities) == VLLM.capabilities
    assert isinstance(left, Capabilities)
