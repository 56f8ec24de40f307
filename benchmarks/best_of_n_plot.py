"""The picture of the stopping benchmark: accuracy against traces, a panel for each recording."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from best_of_n import Figures

MARKS = "osD^v<>PX*dhp8"


def draw(path: str, measured: Mapping[str, Mapping[str, Figures]]) -> None:
    """Write the picture; a fixed number of traces is a line, every other rule a point. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "anabranch", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(measured), figsize=(5.2 * len(measured), 5.2), squeeze=False)
    for panel, (title, lines) in zip(panels[0], measured.items(), strict=True):
        _panel(panel, title, lines)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _panel(panel: Any, title: str, lines: Mapping[str, Figures]) -> None:
    colours = dict(zip(dict.fromkeys(name.partition(": ")[0] for name in lines), ("C0", "C1"), strict=False))
    marks: dict[str, str] = {}
    for selection, colour in colours.items():
        own = {
            name.partition(": ")[2]: each for name, each in lines.items() if name.startswith(f"{selection}: ")
        }
        fixed = [_point(each) for name, each in own.items() if name.startswith("fixed")]
        panel.plot(*zip(*fixed, strict=True), "-", color=colour, label=f"{selection}: fixed number")
        for name, each in own.items():
            if not name.startswith("fixed"):
                mark = marks.setdefault(name, MARKS[len(marks) % len(MARKS)])
                label = name if selection == "majority" or "majority" not in colours else None
                panel.plot(*_point(each), mark, color=colour, label=label, markersize=6, alpha=0.8)
    panel.set(xscale="log", xlabel="traces a problem", ylabel="accuracy %", title=title)
    panel.legend(fontsize=7, loc="lower right")
    panel.grid(alpha=0.3)


def _point(figures: Figures) -> tuple[float, float]:
    return fmean(figures.traces), 100 * fmean(figures.right)
