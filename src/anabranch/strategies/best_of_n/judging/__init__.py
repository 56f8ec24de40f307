"""Judges that cost next to nothing: will two partial traces give the same answer? (DeepPrune has a trained 4B model.)

`Judge` and `shipped` need numpy alone, `train` scikit-learn (`anabranch[judge]`).
"""

from anabranch.strategies.best_of_n.judging.auroc import Area, Rated, auroc, bootstrap, within
from anabranch.strategies.best_of_n.judging.features import FEATURES, features
from anabranch.strategies.best_of_n.judging.judge import Judge, shipped
from anabranch.strategies.best_of_n.judging.training import Recipe, TracePair, Trained, train

__all__ = [
    "FEATURES",
    "Area",
    "Judge",
    "Rated",
    "Recipe",
    "TracePair",
    "Trained",
    "auroc",
    "bootstrap",
    "features",
    "shipped",
    "train",
    "within",
]
