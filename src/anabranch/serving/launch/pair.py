"""A target and a draft server side by side, for `lookahead`: their command lines, and running both.

SGLang takes `--mem-fraction-static` of the memory that is free when it starts. So on a GPU that both share the target
starts first, with a part of it, and the draft takes its part of the rest.

Source of the split: SpecReason (arXiv 2504.07891) gives its base model most of the cache, since a draft needs little for a token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from anabranch.orchestrator.errors import InvalidParameter
from anabranch.serving.launch.command import command
from anabranch.serving.launch.process import ServerProcess

SHARED_TARGET, SHARED_TARGET_SPECULATIVE, SHARED_DRAFT = 0.70, 0.62, 0.70
"""Memory fractions on one GPU; with token-level speculation the target keeps room for its own draft."""
_WATCH_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A server to start. `environment`: variables besides those of this process."""

    role: str
    command: Sequence[str]
    where: str
    environment: Mapping[str, str] = field(default_factory=dict)


def pair(
    profile: str,
    *,
    model: str | None,
    draft_server: str,
    port: int,
    host: str = "127.0.0.1",
    gpus: Sequence[int] = (),
    draft_model: str | None = None,
    speculative: str | None = None,
    extra_flags: Sequence[str] = (),
) -> tuple[Planned, Planned]:
    """The target at `port`, then the draft at the next one.

    Args:
        draft_server: path or name of the draft's model.
        gpus: numbers of the GPUs. With several the last one is the draft's, and the target is spread over the others; one
            is shared. Left out, the first one.
        draft_model, speculative: the target's token-level speculation.
        extra_flags: for both.

    Raises:
        InvalidParameter: these do not go together.
        UnknownName, ConfigurationError: see `command`.
    """
    if port >= 65535:
        raise InvalidParameter("port", "the draft takes the next port, so 65534 is the last")
    on_gpu = profile != "cpu"
    if gpus and not on_gpu:
        raise InvalidParameter("gpus", "the profile cpu uses none")
    if len(set(gpus)) < len(gpus) or any(gpu < 0 for gpu in gpus):
        raise InvalidParameter("gpus", f"needs different numbers from 0 on, got {list(gpus)}")
    numbers = tuple(gpus) or (0,)
    shared = on_gpu and len(numbers) == 1
    target_share = SHARED_TARGET_SPECULATIVE if speculative else SHARED_TARGET
    target = command(
        profile,
        model=model,
        port=port,
        host=host,
        draft_model=draft_model,
        speculative=speculative,
        tp=len(numbers) - 1 if len(numbers) > 2 else None,
        memory=target_share if shared else None,
        extra_flags=extra_flags,
    )
    draft = command(
        profile,
        model=draft_server,
        port=port + 1,
        host=host,
        memory=SHARED_DRAFT if shared else None,
        extra_flags=extra_flags,
    )
    return (
        Planned(
            role="target",
            command=target,
            where=f"{host}:{port}",
            environment=_only(numbers[:-1] or numbers, on_gpu),
        ),
        Planned(
            role="draft", command=draft, where=f"{host}:{port + 1}", environment=_only(numbers[-1:], on_gpu)
        ),
    )


def run_all(planned: Sequence[Planned]) -> tuple[str, int]:
    """Start one after the other, each once the one before is ready, and wait until one ends.

    Returns:
        The role of the server that ended, and its exit code. All others are stopped then, as at Ctrl-C.
    """
    with ExitStack() as stack:
        running = [
            (
                each.role,
                stack.enter_context(
                    ServerProcess(each.command, url=f"http://{each.where}", environment=each.environment)
                ),
            )
            for each in planned
        ]
        while True:
            for role, process in running:
                if (code := process.poll()) is not None:
                    return role, code
            time.sleep(_WATCH_S)


def _only(gpus: Sequence[int], on_gpu: bool) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if on_gpu else {}
