"""`/v1/embeddings`: the one thing that OpenAI's API measures of a text. Pure.

Whether a server has it depends on the model that it runs; none says so before it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from anabranch.orchestrator.backend import Call, Delta, End
from anabranch.orchestrator.errors import BackendError, MalformedResponse
from anabranch.serving.backends.openai.reply import token_usage

PATH = "/embeddings"
_EMBEDS, _MODEL = (re.compile(word, re.IGNORECASE) for word in ("embedding", "model"))


def build(call: Call, model: str) -> dict[str, Any]:
    """The request that embeds the last turn of a branch."""
    return {"model": model, "input": call.branch.last_turn, "encoding_format": "float"}


def read(answer: object) -> Delta:
    """The vector. Raises MalformedResponse where there is none."""
    try:
        assert isinstance(answer, Mapping)
        vector = tuple(float(number) for number in answer["data"][0]["embedding"])
        if not vector:
            raise ValueError("it is empty")
    except (AssertionError, KeyError, IndexError, TypeError, ValueError) as error:
        raise MalformedResponse(f"no embedding in the answer: {str(answer)[:200]}") from error
    usage = token_usage(answer["usage"]) if answer.get("usage") else None
    return Delta(tokens=0, end=End(usage=usage, measured=vector, model=answer.get("model")))


def refused(error: BackendError) -> bool:
    """Whether the server has no embeddings: it lacks the path, or says that its model makes none."""
    said = str(error)
    match error.status_code:
        case 405 | 501:
            return True
        case 404:  # with a word about the model it is the model that is not there
            return not _MODEL.search(said) or bool(_EMBEDS.search(said))
        case status:
            return status == 400 and bool(_EMBEDS.search(said))
