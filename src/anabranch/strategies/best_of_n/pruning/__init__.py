"""Pruning rules of best-of-N: which running traces are not worth going on with. One file for each family.

All are pure. None prunes a trace that has ended, or a number that it was not given. `Clustering` is a clustering under
way, for judges that have to be waited for: it says which pairs it wants judged, and is told.
"""

from anabranch.strategies.best_of_n.pruning.base import Combined, Decided, Enough, Overlong
from anabranch.strategies.best_of_n.pruning.clusters import Clustering, Greedy, Redundant, Representatives
from anabranch.strategies.best_of_n.pruning.confidence import LowConfidence
from anabranch.strategies.best_of_n.pruning.looping import Looping

__all__ = [
    "Clustering",
    "Combined",
    "Decided",
    "Enough",
    "Greedy",
    "Looping",
    "LowConfidence",
    "Overlong",
    "Redundant",
    "Representatives",
]
