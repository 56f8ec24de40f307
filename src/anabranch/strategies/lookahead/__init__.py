"""Step-level speculation: Lookahead Reasoning and its relatives."""

from anabranch.strategies.lookahead.strategy import Lookahead, rsd, specreason, ssr

__all__ = ["Lookahead", "rsd", "specreason", "ssr"]
