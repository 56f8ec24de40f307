"""Step-level speculation: Lookahead Reasoning and its relatives."""

from anabranch.strategies.lookahead.strategy import Lookahead, specreason

__all__ = ["Lookahead", "specreason"]
