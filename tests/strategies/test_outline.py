"""Outlines are read as models write them, and cut off or muddled ones give what can be used."""

from __future__ import annotations

import json

import pytest

from anabranch.strategies.outline import (
    Point,
    drop_bad_needs,
    outline_schema,
    parse_json_outline,
    parse_outline,
    read_outline,
)


def titles(text: str, max_points: int = 10) -> list[str]:
    return [point.title for point in parse_outline(text, max_points)]


@pytest.mark.parametrize(
    "text",
    [
        "1. Set goals\n2. Plan ahead\n3. Rest well",
        "1.Set goals\n2.Plan ahead\n3.Rest well",
        "1) Set goals\n2) Plan ahead\n3) Rest well",
        "(1) Set goals\n(2) Plan ahead\n(3) Rest well",
        "[1] Set goals\n[2] Plan ahead\n[3] Rest well",
        "1: Set goals\n2: Plan ahead\n3: Rest well",
        "1、Set goals\n2、Plan ahead\n3、Rest well",
        "一、Set goals\n二、Plan ahead\n三、Rest well",
        "(一)Set goals\n(二)Plan ahead\n(三)Rest well",
        "\uff08一\uff09Set goals\n\uff08二\uff09Plan ahead\n\uff08三\uff09Rest well",
        "第一、Set goals\n第二、Plan ahead\n第三、Rest well",
        "第1点\uff1aSet goals\n第2点\uff1aPlan ahead\n第3点\uff1aRest well",
        "\uff11\uff0eSet goals\n\uff12\uff0ePlan ahead\n\uff13\uff0eRest well",
        "①Set goals\n② Plan ahead\n③ Rest well",
        "- Set goals\n- Plan ahead\n- Rest well",
        "* Set goals\n* Plan ahead\n* Rest well",
        "• Set goals\n• Plan ahead\n• Rest well",
        "1. **Set goals**\n2. **Plan ahead**\n3. **Rest well**",
        "**1. Set goals**\n**2. Plan ahead**\n**3. Rest well**",
        "**1.** Set goals\n**2.** Plan ahead\n**3.** Rest well",
        "- **Set goals:**\n- **Plan ahead:**\n- **Rest well:**",
        "## 1. Set goals\n## 2. Plan ahead\n## 3. Rest well",
        "## Set goals\n\n## Plan ahead\n\n## Rest well",
        "> 1. Set goals\n> 2. Plan ahead\n> 3. Rest well",
        "Point 1: Set goals\nPoint 2: Plan ahead\nStep 3: Rest well",
        "```\n1. Set goals\n2. Plan ahead\n3. Rest well\n```",
        '1. "Set goals"\n2. `Plan ahead`\n3. [Rest well].',
        "1. Set goals 2. Plan ahead 3. Rest well",
        "\n\n  1. Set goals\n\n  2. Plan ahead\n\n  3. Rest well\n",
        "1. Set\ngoals\n2. Plan\n   ahead\n3. Rest well",
        "Sure! Here is a skeleton:\n\n1. Set goals\n2. Plan ahead\n3. Rest well\n\nI hope this helps!",
        "# Outline\n1. Set goals\n2. Plan ahead\n3. Rest well\nThese points cover the subject.",
        "<think>\n1. no\n2. not this\n</think>\n1. Set goals\n2. Plan ahead\n3. Rest well",
        "so the list is 1. this</think>1. Set goals\n2. Plan ahead\n3. Rest well",
        "1. Set goals\n2. Plan ahead\n2. Something else\n3. Rest well\n4. set goals",
        "3. Set goals\n5. Plan ahead\n9. Rest well",
    ],
)
def test_lists_are_read_in_every_way_that_models_write_them(text: str) -> None:
    """Whatever the markers are, the same three points come out, numbered from 1."""
    points = parse_outline(text, 10)
    assert [(point.number, point.title) for point in points] == [
        (1, "Set goals"),
        (2, "Plan ahead"),
        (3, "Rest well"),
    ]


def test_nested_lists_belong_to_their_parent() -> None:
    """Nested bullets, numbers and dotted numbers are no points, but the detail of one."""
    text = "1. Health\n   - sleep\n   - food\n2. Work\n   1. plans\n   2. breaks\n3. Home\n3.1 garden\n3.2. kitchen"
    points = parse_outline(text, 10)
    assert [point.title for point in points] == ["Health", "Work", "Home"]
    assert [point.detail for point in points] == ["sleep; food", "plans; breaks", "garden; kitchen"]
    assert str(points[0]) == "1. Health (sleep; food)"


def test_what_follows_a_bold_title_is_detail() -> None:
    """`**Title**: explanation` gives a short title and keeps the explanation apart."""
    assert parse_outline("1. **Set goals**: write them\ndown\n2. Plan: ahead", 10) == [
        Point(number=1, title="Set goals", detail="write them down"),
        Point(number=2, title="Plan: ahead"),
    ]


def test_chinese_numerals_beyond_ten() -> None:
    """十 is 10, 十一 is 11, 二十三 is 23: none of them is taken for another."""
    numerals = ["一", "十", "十一", "二十", "二十三"]
    assert titles("\n".join(f"{numeral}、点{numeral}" for numeral in numerals)) == [f"点{n}" for n in numerals]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "I cannot answer that.",
        "3.5 million people live there.",
        "<think>\n1. endless",
        "1.",
        "1. **",
        "10:30",
    ],
)
def test_no_list_no_points(text: str) -> None:
    """Prose, emptiness and unfinished thoughts give no points, and no error."""
    assert parse_outline(text, 10) == []


def test_at_most_so_many_points() -> None:
    """Points beyond the cap are left out."""
    assert titles("\n".join(f"{i}. point {i}" for i in range(1, 60)), 7) == [f"point {i}" for i in range(1, 8)]


def test_json_outline() -> None:
    """Titles alone, or objects with needs and difficulty."""
    assert [p.title for p in parse_json_outline('{"points": ["Set goals", "Plan ahead"]}', 10)] == [
        "Set goals",
        "Plan ahead",
    ]
    text = (
        '```json\n{"points": [{"title": "A one"}, {"title": "B two", "needs": [1], "difficulty": "hard"}]}\n```'
    )
    assert parse_json_outline(text, 10) == [
        Point(number=1, title="A one"),
        Point(number=2, title="B two", needs=(1,), difficulty="hard"),
    ]


@pytest.mark.parametrize("length", range(1, 105))
def test_truncated_json_gives_what_is_complete(length: int) -> None:
    """Cut anywhere, a JSON outline gives the points that were complete by then."""
    whole = '{"points": [{"title": "First \\"x\\"", "needs": []}, {"title": "Second", "needs": [1]}, {"title": "Third"}]}'
    points = parse_json_outline(whole[:length], 10)
    assert points == parse_json_outline(whole, 10)[: len(points)]
    assert len(points) == sum(length >= whole.index(end) + len(end) for end in ("[]}", "[1]}", '"Third"}'))


def test_needs_follow_their_points_when_duplicates_go() -> None:
    """A need of a point that was a duplicate becomes a need of the one that stayed."""
    items = [{"title": "A"}, {"title": "a"}, {"title": "B", "needs": [2]}, {"title": "C", "needs": [3]}]
    points = parse_json_outline(json.dumps({"points": items}), 10)
    assert [(point.number, point.title, point.needs) for point in points] == [
        (1, "A", ()),
        (2, "B", (1,)),
        (3, "C", (2,)),
    ]


@pytest.mark.parametrize(
    "text",
    ['{"points": [1, null, [], {}, {"title": ""}, true]}', "[", "{}", '{"points": {"title": "x"}}', "[[1, 2"],
)
def test_json_that_is_no_outline_gives_no_points(text: str) -> None:
    """Valid or invalid JSON without titles gives nothing, and no error."""
    assert read_outline(text, 10) == []


def test_a_list_is_read_where_json_was_asked_for() -> None:
    """A model that ignores the format and writes a list is understood all the same."""
    assert [p.title for p in read_outline("1. Use [brackets] well\n2. Rest [1, 2]", 10)] == [
        "Use [brackets] well",
        "Rest [1, 2]",
    ]


def test_bad_needs_are_dropped_and_named() -> None:
    """Needs of later points, unknown points and the point itself go; cycles cannot be left."""
    points = [
        Point(number=1, title="A", needs=(2,)),
        Point(number=2, title="B", needs=(1, 2, 1)),
        Point(number=3, title="C", needs=(1, 9, 0)),
    ]
    sound, problems = drop_bad_needs(points)
    assert [point.needs for point in sound] == [(), (1,), (1,)]
    assert problems == [
        "point 1 cannot need point 2: only earlier ones count",
        "point 2 cannot need point 2: only earlier ones count",
        "point 3 cannot need point 9, 0: only earlier ones count",
    ]


def test_the_schema_says_what_was_asked_for() -> None:
    """Titles only, or objects with the fields that are wanted, between three points and the cap."""
    points = json.loads(outline_schema(5))["properties"]["points"]
    assert (points["minItems"], points["maxItems"], points["items"]["type"]) == (3, 5, "string")
    graph = json.loads(outline_schema(2, dependencies=True, difficulty=True))["properties"]["points"]
    assert graph["minItems"] == 2
    assert list(graph["items"]["properties"]) == ["title", "needs", "difficulty"]
    assert graph["items"]["properties"]["needs"]["items"]["maximum"] == 2
