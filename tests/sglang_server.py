"""A real SGLang on the CPU for tests: one server for the whole session, `smollm2` on it.

`$ANABRANCH_TEST_SGLANG` names a server that runs already, as `sglang://HOST:PORT`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from anabranch.serving import launch


@pytest.fixture(scope="session")
def sglang_url() -> Iterator[str]:
    """Where the server is; the test is skipped where none can be started."""
    if running := os.environ.get("ANABRANCH_TEST_SGLANG"):
        yield running
        return
    require_environment()
    port = launch.free_port()
    with launch.ServerProcess(launch.command("cpu", port=port), url=f"http://127.0.0.1:{port}"):
        yield f"sglang://127.0.0.1:{port}"


def require_environment() -> launch.CpuEnvironment:
    """The environment that SGLang runs in; the test is skipped where it is not built."""
    environment = launch.cpu_environment()
    if environment is None:
        pytest.skip(f"SGLang for the CPU is not built: {launch.BUILD_COMMAND}")
    return environment
