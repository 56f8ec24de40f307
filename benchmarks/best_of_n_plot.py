"""The picture of the stopping benchmark: accuracy against traces, a panel for each recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from best_of_n import Figures

MARKS = "osD^v<>PX*dhp8H"
TICKS = (1, 2, 3, 5, 8, 12, 20, 40)

Point = tuple[float, float]


def draw(path: str, measured: Mapping[str, Mapping[str, Figures]]) -> None:
    """Write the picture. Needs matplotlib.

    A fixed number of traces is a line with its 95 % interval, every other rule a point; what no other rule beats in both
    directions is joined by a dotted line, the Pareto front.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "anabranch", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(measured), figsize=(5.2 * len(measured), 6.6), squeeze=False)
    for panel, (title, lines) in zip(panels[0], measured.items(), strict=True):
        _panel(panel, title, lines)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _panel(panel: Any, title: str, lines: Mapping[str, Figures]) -> None:
    split = [(*name.partition(": ")[::2], figures) for name, figures in lines.items()]
    for colour, selection in zip(
        ("C0", "C1"), dict.fromkeys(selection for selection, _, _ in split), strict=False
    ):
        fixed = [each for chosen, name, each in split if chosen == selection and name.startswith("fixed")]
        _fixed(panel, selection, colour, fixed)
    points = [each for each in split if not each[1].startswith("fixed")]
    names = list(dict.fromkeys(name for _, name, _ in points))
    for selection, name, figures in points:
        style = {"marker": MARKS[names.index(name)], "color": f"C{2 + names.index(name) % 8}"}
        edge = "none" if selection == "majority" else "black"
        label = name if selection == "majority" else None
        panel.plot(*_point(figures), linestyle="", markeredgecolor=edge, label=label, **style)
    front = _front([_point(figures) for figures in lines.values()])
    panel.step(*zip(*front, strict=True), ":", color="grey", where="post", label="Pareto front")
    panel.set(xscale="log", xlabel="traces a problem", ylabel="accuracy %", title=title.partition(" x ")[0])
    panel.set_xticks(TICKS, map(str, TICKS))
    panel.set_xticks((), minor=True)
    panel.set_xlim(0.9, 1.1 * max(fmean(each.traces) for each in lines.values()))
    panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)
    panel.grid(alpha=0.3)


def _fixed(panel: Any, selection: str, colour: str, figures: Sequence[Figures]) -> None:
    counts = [fmean(each.traces) for each in figures]
    low, high = zip(*(each.interval() for each in figures), strict=True)
    panel.plot(*zip(*map(_point, figures), strict=True), color=colour, label=f"{selection}: fixed number")
    panel.fill_between(counts, low, high, color=colour, alpha=0.1, linewidth=0)


def _point(figures: Figures) -> Point:
    return fmean(figures.traces), fmean(figures.percent())


def _front(points: Sequence[Point]) -> list[Point]:
    """Those that no other point beats, from few traces to many."""
    front: list[Point] = []
    for point in sorted(points, key=lambda each: (each[0], -each[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front
