"""The backend for SGLang servers: `sglang://HOST:PORT`, through the native API, token ids in and out."""

from anabranch.serving.backends.sglang.backend import SGLangBackend, from_url

__all__ = ["SGLangBackend", "from_url"]
