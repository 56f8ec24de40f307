"""Answers: the final answer in a model's text, and whether two answers are the same. For votes and for grading.

Nothing here raises for what a model wrote: a text without an answer has None, and what cannot be compared is not the same.
"""

from anabranch.answers.equivalence import Equivalence, How, Verdict
from anabranch.answers.extraction import Form, extract
from anabranch.answers.keys import Keys

__all__ = ["Equivalence", "Form", "How", "Keys", "Verdict", "extract"]
