"""Comparisons that stand in for math-verify, in a module that another process can import."""

from __future__ import annotations

import os
import time


def strange(gold: str, predicted: str) -> bool | None:
    """Hangs, dies, or says what the right answer says."""
    match gold:
        case "hang":
            time.sleep(600)
        case "die":
            os._exit(3)
    return {"yes": True, "no": False}.get(gold)
