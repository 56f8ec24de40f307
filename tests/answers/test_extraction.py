"""What is taken for the answer of a text."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.answers import Form, extract, extraction


def test_the_examples_of_the_documentation() -> None:
    """They are what they say."""
    assert doctest.testmod(extraction).failed == 0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{1}. Then, since that was wrong, it is \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed 7", "7"),
        (r"\fbox{7}", "7"),
        (r"\[\boxed{(1,2)}, \boxed{(3,4)}\]", "(1,2), (3,4)"),
        (r"\boxed{x = 1} \quad\text{and}\quad \boxed{y = 2}", "x = 1, y = 2"),
        (r"It was \boxed{3}, and now \boxed{4", None),
        (r"\boxed{}", None),
        (r"\boxed", None),
        ("#### 1,234", "1,234"),
        ("Sum: 3 + 4\n#### 7\n", "7"),
        ("The answer is 42.", "42"),
        ("The final answer is: **42**", "42"),
        ("Answer: $\\frac12$", r"\frac12"),
        ("The answer is $x^2$, as asked.", "x^2"),
        ("The answer to the question of how many there are is 12 apples.", "12 apples"),
        ("the answer is 3.5. That is all.", "3.5"),
        ("The answer is\n5", "5"),
        ("So she has 3 and he has 1,250.50 dollars.", "1,250.50"),
        ("It is -3", "-3"),
        ("about 50% of 20", "20"),
        ("No. 5 is alive; costs $12.", "12"),
        (r"Let $x = 3$. Hence there are 12 of them.", "12"),
        (r"There are 12. Hence $x = \frac{3}{4}$.", r"x = \frac{3}{4}"),
        (r"\[ x^2 \]", "x^2"),
        ("It costs $5 and then $7 more", "7"),
        ("no number at all", None),
        ("", None),
        ("<think>It is 5", None),
        ("<think>It is \\boxed{5}</think>It is 6.", "6"),
        ("It is \\boxed{5}</think>\n\nIt is \\boxed{6}.", "6"),
        ("<think>5</think>", None),
        (r"\boxed{" + "1" * 3000 + "}", None),
    ],
)
def test_mathematical_answers(text: str, answer: str | None) -> None:
    """The box, the marker, the last formula, the last number, in this order, behind the reasoning."""
    found = extract(text)
    assert found == answer or (found or "").lstrip("$") == answer


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(B)", "B"),
        ("b", "B"),
        ("C.", "C"),
        ("D) because of the others", "D"),
        ("The answer is (C).", "C"),
        ("The answer is C", "C"),
        (r"\boxed{\text{B}}", "B"),
        (r"\boxed{(D)}", "D"),
        ("Neither (A) nor (B): it must be (D), I think", "D"),
        ("A man has 3 apples", None),
        ("Answer: E", "E"),
        ("I'm not sure", None),
        ("The answer is unclear", None),
    ],
)
def test_letters_of_choices(text: str, letter: str | None) -> None:
    """Alone, announced, boxed, or in parentheses; an article or a pronoun is none."""
    assert extract(text, "choice") == letter


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>Rome?</think> Paris.", "Paris"),
        ("Many thoughts. The answer is Paris. Really.", "Paris"),
        (r"\boxed{Paris}", "Paris"),
        ("  ", None),
    ],
)
def test_words(text: str, answer: str | None) -> None:
    """What was announced, else all there is."""
    assert extract(text, "text") == answer


def test_a_model_that_opens_boxes_for_ever_costs_no_time() -> None:
    """Thousands of boxes without an end are read once."""
    assert extract(r"\boxed{" * 20_000) is None
    assert extract(r"\boxed{1} " * 20_000) is not None


@given(
    text=st.text() | st.text(alphabet="\\boxed{}$#()[]<think>/answer is:.,0123456789-% \n", max_size=80),
    form=st.sampled_from(["math", "text", "choice"]),
)
def test_any_text_has_an_answer_or_none(text: str, form: Form) -> None:
    """Nothing raises, and no answer is empty or too long."""
    found = extract(text, form)
    assert found is None or 0 < len(found) <= extraction.LONGEST


@given(answer=st.text(alphabet="x0123456789+-/^ ", min_size=1, max_size=20).filter(lambda text: text.strip()))
def test_what_is_put_in_a_box_comes_out(answer: str) -> None:
    """Whatever stands before it."""
    assert (
        extract(f"Answer: 5. #### 6\n\\boxed{{7}}.\nThus \\boxed{{{answer}}}, which is it.") == answer.strip()
    )
