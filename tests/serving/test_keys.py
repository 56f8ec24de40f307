"""Which key goes to which server."""

from __future__ import annotations

import pytest

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.backends.keys import key_for

OPENAI = {"OPENAI_API_KEY": "openai-key"}
OURS = {"ANABRANCH_API_KEY": "our-key"}


@pytest.mark.parametrize(
    ("url", "environment", "key"),
    [
        ("https://api.openai.com/v1", OPENAI, "openai-key"),
        ("http://gpu:8000/v1", OPENAI, None),
        ("http://api.openai.com/v1", OPENAI, None),
        ("https://api.openai.com.evil.org/v1", OPENAI, None),
        ("http://gpu:8000/v1", {**OPENAI, "OPENAI_BASE_URL": "http://gpu:8000/v1"}, "openai-key"),
        ("http://GPU:8000/other", {**OPENAI, "OPENAI_BASE_URL": "http://gpu:8000/v1"}, "openai-key"),
        ("http://gpu:8001/v1", {**OPENAI, "OPENAI_BASE_URL": "http://gpu:8000/v1"}, None),
        ("https://api.openai.com/v1", {**OPENAI, "OPENAI_BASE_URL": "http://gpu:8000/v1"}, None),
        ("http://gpu:30000", {**OURS, "ANABRANCH_BACKEND": "sglang://gpu"}, "our-key"),
        ("http://gpu:80/v1", {**OURS, "ANABRANCH_BACKEND": "http://gpu/v1"}, "our-key"),
        ("https://gpu/v1", {**OURS, "ANABRANCH_BACKEND": "http://gpu/v1"}, None),
        ("http://draft:30000", {**OURS, "ANABRANCH_BACKEND": "sglang://gpu"}, None),
        ("http://gpu:30000", OURS, None),
        ("http://gpu:30000", {**OURS, "ANABRANCH_BACKEND": "local:"}, None),
        ("http://gpu:30000", {**OURS, "ANABRANCH_BACKEND": "http://[broken"}, None),
        ("http://gpu:8000/v1", {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": "http://gpu:8000/v1"}, None),
        ("http://gpu:8000/v1", {**OPENAI, **OURS, "ANABRANCH_BACKEND": "http://gpu:8000/v1"}, "our-key"),
    ],
)
def test_a_key_goes_to_the_server_that_stands_beside_it(
    url: str, environment: dict[str, str], key: str | None
) -> None:
    """Host and port must be the same; the path need not."""
    assert key_for(url, "", environment) == key


def test_a_url_may_name_the_variable() -> None:
    """Its key goes there and goes before all others; one that is not set is an error, and no other is taken."""
    environment = {**OURS, "ANABRANCH_BACKEND": "http://gpu:8000", "MINE": "mine"}
    assert key_for("http://gpu:8000", "MINE", environment) == "mine"
    with pytest.raises(InvalidParameter, match=r"key=THEIRS.*\$THEIRS is not set"):
        key_for("http://gpu:8000", "THEIRS", environment)
