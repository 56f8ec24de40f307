"""Selection rules of best-of-N: which answer to take. One file for votes, one for single traces.

All are pure, and order-free: the order in which traces ended changes nothing. A trace that was cut, or has no answer that
can be read, is no vote. What needs a model (a judge that compares answers, a summary) is not here.
"""

from anabranch.strategies.best_of_n.selection.single import BestScore, First, Longest
from anabranch.strategies.best_of_n.selection.votes import ConfidenceVote, MajorityVote, ScoreVote

__all__ = ["BestScore", "ConfidenceVote", "First", "Longest", "MajorityVote", "ScoreVote"]
