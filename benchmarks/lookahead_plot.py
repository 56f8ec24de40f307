"""The picture of lookahead's model of time: speed-up against depth, for both forms, and with token-level speculation."""

from __future__ import annotations

from typing import Any

from anabranch.strategies.lookahead.timing import speedup

ACCEPTANCE = (0.3, 0.5, 0.7, 0.9)
DEPTHS = range(17)


def draw(path: str, *, ratio: float = 0.1, token_level: float = 1.4) -> None:
    """Write the picture. Needs matplotlib.

    Left: the asynchronous form is a line, the synchronous one is dashed, and a dot marks the depth from which on 2 % more
    are not to be had, or the peak. Right: the same with a target that token-level speculation makes `token_level` times
    as fast.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "anabranch", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), sharey=True)
    _panel(left, ratio, 1.0)
    _panel(right, ratio, token_level)
    left.set(title=f"draft / target = {ratio:g}", ylabel="speed-up over the plain target")
    right.set(title=f"the same, target {token_level:g} times as fast by token-level speculation")
    right.axhline(token_level, color="grey", linestyle=":", label="token-level speculation alone")
    figure.legend(*right.get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=8)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _panel(panel: Any, ratio: float, token_level: float) -> None:
    for index, acceptance in enumerate(ACCEPTANCE):
        for in_step, style in ((False, "-"), (True, "--")):
            gains = [
                token_level * speedup(acceptance, ratio * token_level, depth, in_step=in_step)
                for depth in DEPTHS
            ]
            best = next(depth for depth, gain in enumerate(gains) if gain >= max(gains) / 1.02)
            label = None if in_step else f"acceptance {acceptance}"
            panel.plot(DEPTHS, gains, style, color=f"C{index}", label=label)
            panel.plot([best], [gains[best]], "o", color=f"C{index}", markersize=5)
    panel.set(xlabel=r"depth $\gamma$", xticks=DEPTHS[::2])
    panel.axhline(1.0, color="black", linewidth=0.6)
    panel.grid(alpha=0.3)
