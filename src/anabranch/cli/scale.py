"""A time axis: round ticks, and their labels."""

from __future__ import annotations

from math import ceil, floor, log10


def ticks(total: float, most: int) -> list[float]:
    """Round times from 0 to at most `total`, in `most` even steps at most, of 1, 2 or 5 times a power of ten."""
    if total <= 0 or most < 1:
        return [0.0]
    rough = total / most
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999999)
    return [index * step for index in range(floor(total / step + 1e-9) + 1)]


def tick_labels(times: list[float]) -> list[str]:
    """The ticks as text, in milliseconds where the axis is short; all with the same number of digits."""
    if not times or times[-1] < 1:
        return [f"{round(time * 1000, 3):g} ms" for time in times]
    step = times[1] - times[0] if len(times) > 1 else 1.0
    digits = max(0, ceil(-log10(step) - 1e-9))
    return [f"{time:.{digits}f} s" for time in times]
