"""Starts SGLang: named profiles of flags, an environment for CPUs, and a process that is stopped with its parent.

environment = launch.build_cpu_environment(progress=print)
port = launch.free_port()
with launch.ServerProcess(launch.command("cpu", port=port), url=f"http://127.0.0.1:{port}"):
    ...
"""

from anabranch.serving.launch.command import check_flags, command
from anabranch.serving.launch.environment import (
    BUILD_COMMAND,
    CpuEnvironment,
    build_cpu_environment,
    cache_folder,
    cpu_environment,
)
from anabranch.serving.launch.pair import Planned, pair, run_all
from anabranch.serving.launch.process import ServerProcess, free_port
from anabranch.serving.launch.profiles import PROFILES, SPECULATIONS, Profile, Speculation

__all__ = [
    "BUILD_COMMAND",
    "PROFILES",
    "SPECULATIONS",
    "CpuEnvironment",
    "Planned",
    "Profile",
    "ServerProcess",
    "Speculation",
    "build_cpu_environment",
    "cache_folder",
    "check_flags",
    "command",
    "cpu_environment",
    "free_port",
    "pair",
    "run_all",
]
