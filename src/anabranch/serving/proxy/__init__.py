"""The proxy: an OpenAI-compatible server in front of a model server, which answers by strategies where asked to."""

from anabranch.serving.proxy.app import create_app
from anabranch.serving.proxy.settings import Settings

__all__ = ["Settings", "create_app"]
