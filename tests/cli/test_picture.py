"""The picture of a run: an SVG that stands alone, and a page with the branches' texts."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from anabranch.cli import picture
from anabranch.cli.timeline import BranchView, Timeline

SVG = "{http://www.w3.org/2000/svg}"
NASTY = "</text><script>alert(1)</script> & \"'\x1b[31m\u0000 {{ 7 * 7 }}"


def nasty() -> Timeline:
    timeline = Timeline(now=1.0, question=NASTY, strategy=NASTY, backend=NASTY, warnings=[NASTY], error=NASTY)
    timeline.branches[1] = BranchView(
        id=1, label=NASTY, role=NASTY, started_at=0.1, first_token_at=0.2, note=NASTY, pieces=[NASTY], tokens=3
    )
    return timeline


def test_the_picture_is_xml_and_shows_every_branch(example: Timeline) -> None:
    """The SVG parses, and each branch is a group with a title for whoever points at it."""
    root = ElementTree.fromstring(picture.svg(example))
    groups = [group for group in root.iter(f"{SVG}g") if group.get("data-id")]
    assert sorted(int(group.get("data-id", "")) for group in groups) == sorted(example.branches)
    titles = [group.findtext(f"{SVG}title") or "" for group in groups]
    assert any("attempt 2" in title for title in titles)
    states = {group.get("data-id"): (group.get("class") or "").split() for group in groups}
    assert "failed" in states["7"]
    assert {"stopped", "wasted"} <= set(states["10"])
    assert states["3"] == ["bar", "done"]


def test_the_question_the_figures_and_the_warning_are_in_it(example: Timeline) -> None:
    """Whoever sees only the picture knows what was asked, what it took, and what went wrong."""
    words = " ".join(ElementTree.fromstring(picture.svg(example)).itertext())
    for expected in (
        "How do I set up a small weather station",
        "325 tok",
        "2.7\u00d7",
        "first token",
        "point 5 is missing",
    ):
        assert expected in words


def test_the_picture_loads_nothing_and_knows_light_and_dark(example: Timeline) -> None:
    """It stands alone: no address but the SVG name space, and colours for both schemes."""
    for drawn in (picture.svg(example), picture.html(example)):
        assert set(re.findall(r"https?://[^\s\"'<]+", drawn)) == {"http://www.w3.org/2000/svg"}
        assert "prefers-color-scheme: dark" in drawn


def test_text_from_outside_is_escaped() -> None:
    """Markup, template code and control characters in a run are shown as text, in the SVG and on the page."""
    drawn = picture.svg(nasty())
    root = ElementTree.fromstring(drawn)
    assert not list(root.iter(f"{SVG}script"))
    assert "{{ 7 * 7 }}" in " ".join(root.itertext())
    page = picture.html(nasty())
    assert page.count("<script") == 2
    assert "<script>alert" not in page
    assert "\x1b" not in page + drawn


def test_the_page_carries_the_texts(example: Timeline) -> None:
    """Each branch's text is on the page, as data that cannot end the script."""
    page = picture.html(example)
    found = re.search(r'<script type="application/json" id="texts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    texts = json.loads(found[1])
    assert set(texts) == {str(id) for id in example.branches}
    assert texts["3"]["text"].startswith("Place the station where it drains well")
    assert texts["7"]["note"].startswith("connection reset")


def test_a_very_long_text_is_cut_on_the_page() -> None:
    """A branch of a megabyte does not make a page of a megabyte."""
    timeline = Timeline(now=1.0)
    timeline.branches[1] = BranchView(id=1, started_at=0.0, pieces=["x" * 1_000_000])
    assert len(picture.html(timeline)) < 50_000


def test_a_run_that_was_cut_off_says_so(example: Timeline) -> None:
    """The picture of a trace without its end says that it is one."""
    example.finished, example.summary = False, {}
    words = " ".join(ElementTree.fromstring(picture.svg(example)).itertext())
    assert "the trace ends before the run does" in words
    assert "so far" in words


def test_many_roles_get_a_legend_that_fits(example: Timeline) -> None:
    """The legend breaks into lines rather than leave the picture."""
    for branch in example.branches.values():
        branch.role = f"a role with a long name {branch.id}"
    root = ElementTree.fromstring(picture.svg(example))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.get("x", "")) < width
        assert 0 < float(text.get("y", "")) < height
