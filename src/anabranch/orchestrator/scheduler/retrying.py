"""The one retry layer: how often, how long between, and what never.

Only what the server itself calls temporary is tried again, and nothing after a piece of text reached the caller.
Waits grow exponentially with full jitter (Brooker, "Exponential backoff and jitter", AWS 2015), and are never shorter
than the server's Retry-After. Loops and sleeps are tenacity's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.orchestrator.errors import BackendError, BackendOverloaded

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Attempts and waits.

    Attributes:
        attempts: tries in all for a server that failed or is not reachable.
        overload_attempts: tries in all for a server that asks to come back later (429, 503).
        first_wait_s: most seconds before the second try; doubles with each further one.
        longest_wait_s: most seconds between two tries; a server that asks for a longer wait is not tried again.
    """

    attempts: int = 3
    overload_attempts: int = 6
    first_wait_s: float = 0.5
    longest_wait_s: float = 60.0

    def allows(self, error: BaseException | None, attempt: int) -> bool:
        """Whether to try again after this error of attempt number `attempt`."""
        if not isinstance(error, BackendError) or not error.retryable:
            return False
        if (error.retry_after or 0.0) > self.longest_wait_s:
            return False
        most = self.overload_attempts if isinstance(error, BackendOverloaded) else self.attempts
        return attempt < most

    def wait_s(self, error: BaseException | None, attempt: int) -> float:
        """Seconds to wait after this error of attempt number `attempt`."""
        backoff = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempt - 1)) * random.random()
        asked = error.retry_after if isinstance(error, BackendError) else None
        return max(backoff, asked + backoff * 0.1) if asked else backoff

    def loop(
        self, *, wrote: Callable[[], bool], retrying: Callable[[int, BackendError, float], None]
    ) -> AsyncRetrying:
        """A loop over attempts, for one call.

        Args:
            wrote: whether a piece of output has reached the caller.
            retrying: told of each failed attempt that another one follows: its number, its error, the wait in
                seconds.
        """
        from tenacity import AsyncRetrying

        def again(state: RetryCallState) -> bool:
            return not wrote() and self.allows(_error(state), state.attempt_number)

        def before_sleep(state: RetryCallState) -> None:
            error = _error(state)
            assert isinstance(error, BackendError)
            assert state.next_action is not None
            retrying(state.attempt_number, error, state.next_action.sleep)

        return AsyncRetrying(
            retry=again,
            wait=lambda state: self.wait_s(_error(state), state.attempt_number),
            before_sleep=before_sleep,
            reraise=True,
        )


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
