"""The scheduler: all generations of all runs pass through it, on one lane for each backend."""

from anabranch.orchestrator.scheduler.lane import Job, Lane, Limits, Sink
from anabranch.orchestrator.scheduler.load import Load
from anabranch.orchestrator.scheduler.retrying import RetryPolicy

__all__ = ["Job", "Lane", "Limits", "Load", "RetryPolicy", "Sink"]
