"""The backend for any OpenAI-compatible `/v1` server, through the `openai` SDK on its aiohttp transport.

What it does: chat completions, streamed; it finds out what kind of server answers, says what that server can do, and
learns from refusals. What it does not do: retry, time out, tokenize, call tools, or ask for several choices.

Addresses: `http(s)://HOST[:PORT]/v1`, `openai://HOST:PORT/v1` (plain http), `openai:` (`$OPENAI_BASE_URL`, else
api.openai.com). `?kind=sglang|vllm|llamacpp|openai|other` says what kind of server stands behind a gateway that hides it.
"""

from anabranch.serving.backends.openai.backend import OpenAIBackend, from_url

__all__ = ["OpenAIBackend", "from_url"]
