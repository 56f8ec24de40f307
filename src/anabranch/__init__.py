"""Anabranch runs one request to a language model as many branches that decode side by side and rejoin.

async with Orchestrator("sglang://localhost:30000") as orch:
    answer = await orch.ask("How do heat pumps work?", strategy="skeleton")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.orchestrator.answer import Answer as Answer
    from anabranch.orchestrator.branch import Branch as Branch
    from anabranch.orchestrator.budget import Budget as Budget
    from anabranch.orchestrator.conduct import LiveAnswer as LiveAnswer
    from anabranch.orchestrator.errors import AnabranchError as AnabranchError
    from anabranch.orchestrator.errors import BackendError as BackendError
    from anabranch.orchestrator.generation import Generation as Generation
    from anabranch.orchestrator.generation import LiveGeneration as LiveGeneration
    from anabranch.orchestrator.orchestrator import Orchestrator as Orchestrator
    from anabranch.orchestrator.policy import Outcome as Outcome
    from anabranch.orchestrator.policy import Policy as Policy
    from anabranch.orchestrator.run import Run as Run
    from anabranch.orchestrator.sampling import Constraint as Constraint
    from anabranch.orchestrator.sampling import Sampling as Sampling
    from anabranch.orchestrator.scheduler import Limits as Limits
    from anabranch.orchestrator.scheduler.retrying import RetryPolicy as RetryPolicy
    from anabranch.orchestrator.scope import Scope as Scope
    from anabranch.orchestrator.strategy import Strategy as Strategy
    from anabranch.orchestrator.taskgraph import Node as Node
    from anabranch.orchestrator.taskgraph import TaskGraph as TaskGraph

_HOMES = {
    "AnabranchError": "errors",
    "Answer": "answer",
    "Branch": "branch",
    "Budget": "budget",
    "Constraint": "sampling",
    "Generation": "generation",
    "Limits": "scheduler.lane",
    "BackendError": "errors",
    "LiveAnswer": "conduct",
    "LiveGeneration": "generation",
    "Outcome": "policy",
    "Scope": "scope",
    "Strategy": "strategy",
    "Node": "taskgraph",
    "Orchestrator": "orchestrator",
    "Policy": "policy",
    "RetryPolicy": "scheduler.retrying",
    "Run": "run",
    "Sampling": "sampling",
    "TaskGraph": "taskgraph",
}

__version__ = "0.1.0"
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import anabranch` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
    return getattr(import_module(f"anabranch.orchestrator.{_HOMES[name]}"), name)
