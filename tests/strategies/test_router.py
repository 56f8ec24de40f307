"""The rules keep questions away that a skeleton does not suit, and let the others pass."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from anabranch.strategies.router import unsuitable

SUITABLE = """
What are the benefits of regular exercise?
Give me tips for learning a new language.
How can I save money on groceries?
What should I consider when buying a used car?
Explain the causes of World War I.
List some ways to reduce plastic waste at home.
What are the advantages and disadvantages of remote work?
How do I prepare for a job interview?
Why is sleep important?
Compare cats and dogs as pets.
Tell me about the culture of Japan.
Suggest five gifts for a ten year old who loves space.
What factors led to the fall of the Roman Empire?
Explain the key principles of object-oriented programming.
Can you suggest ways to make my presentation more engaging?
What would happen if bees went extinct?
What were the most important events of 1989?
I'm planning a garden. What should I think about?
怎样提高学习效率?
Welche Vorteile hat das Fahrrad in der Stadt?
"""

UNSUITABLE = {
    "asks for code": """
Write a SQL query that returns the top customers.
How do I reverse a list in Python?
Fix this bug in my loop: the index is off by one.
Please implement a stack.
Could you explain why this returns None? def f(x): x + 1
""",
    "asks for a calculation or a proof": """
What is 17 * 23?
Prove that the square root of two is irrational.
Solve the system x + y = 10, x - y = 2.
If a train travels 60 miles in 1.5 hours, what is its average speed?
Let $x^2 = 2$. Which values can $x$ take?
""",
    "asks for one number": """
How long does it take to boil an egg?
What year did the Titanic sink?
""",
    "asks for reasoning step by step": "Think step by step about why the sky is blue.",
    "asks for one piece of writing": """
Write a haiku about autumn.
Can you help me write a cover letter for a nursing job?
Tell me a joke.
""",
    "asks to work on a given text": """
Translate "good morning" into French.
Please summarize the following article: The council met on Tuesday ...
""",
    "asks to play a role": """
Pretend you are Albert Einstein and talk about time.
As a pirate captain, what would you say to your crew?
""",
    "asks for a decision": """
Is it safe to eat raw eggs?
Should I buy or rent a house?
Which is bigger, the Sun or Sirius?
""",
    "asks for one fact": """
What is the capital of Australia?
Who painted the Mona Lisa?
Where is the Eiffel Tower?
""",
    "asks for a process whose steps follow from one another": """
How does a refrigerator work?
Explain the process of photosynthesis.
""",
    "says nothing that could be divided": "Hello!\nThanks!\n???",
}


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize("question", lines(SUITABLE))
def test_lists_are_let_pass(question: str) -> None:
    """Questions whose answers are lists of points pass, and so does what is not English."""
    assert unsuitable(question) is None


@pytest.mark.parametrize(
    ("question", "reason"), [(line, reason) for reason, text in UNSUITABLE.items() for line in lines(text)]
)
def test_the_reason_is_named(question: str, reason: str) -> None:
    """Each kind of unsuitable question is kept away for its own reason."""
    assert unsuitable(question) == reason


def test_a_process_suits_where_points_may_build_on_each_other() -> None:
    """With dependencies, steps that follow from one another are what a skeleton is for."""
    assert unsuitable("How does a refrigerator work?", chains=True) is None
    assert unsuitable("What is 17 * 23?", chains=True) is not None


def test_only_the_ends_of_a_long_text_are_looked_at() -> None:
    """Material between instruction and question decides nothing, and costs no time."""
    filler = "word = 3 * 4; def f(x) " * 20_000
    began = time.process_time()
    assert unsuitable("What are good habits?\n" + "x " * 1_000 + filler + "y " * 1_000) is None
    assert (
        unsuitable("Summarize this:\n" + "x " * 1_000 + filler + "y " * 1_000) == "asks to work on a given text"
    )
    assert time.process_time() - began < 1


def test_the_labels_of_skeleton_of_thought_on_vicuna() -> None:
    """On the paper's own labels nearly all that passes suits, and most of what suits passes."""
    path = Path(os.environ.get("ANABRANCH_TEST_DATA", "data")) / "prompts" / "vicuna80.jsonl"
    if not path.is_file():
        pytest.skip(
            f"no {path}; set ANABRANCH_TEST_DATA to a folder with the Vicuna-80 questions and their labels"
        )
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    passed = [row for row in rows if unsuitable(row["problem"]) is None]
    right = sum(row["sot_suitable"] for row in passed)
    assert right / len(passed) >= 0.95
    assert right / sum(row["sot_suitable"] for row in rows) >= 0.85
