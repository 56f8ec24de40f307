"""The backend for recorded generations: exact and free runs of whatever stops, prunes and selects traces.

`replay:FILE` answers a call that asks a recorded problem with the problem's next recorded trace. Options:
`?timing=recorded` waits between the pieces as it was recorded (`none`, the default, does not), `speed=2` twice as fast;
`again=1` starts anew when all traces of a problem were given out. `docs/recordings.md` has the file's format.

It is no model: a prompt that was not recorded is an error, and what a trace says does not depend on the sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.serving.backends.replay.backend import ReplayBackend


def from_url(url: str) -> ReplayBackend:
    """The backend for `replay:FILE?timing=recorded&speed=2&again=1`; reads the file.

    Raises:
        InvalidParameter: no such file, a line of it is no trace, or a bad option.
    """
    from anabranch.serving.backends.replay.backend import ReplayBackend
    from anabranch.serving.backends.replay.settings import parse

    return ReplayBackend(parse(url))
