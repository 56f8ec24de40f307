"""Starts SGLang's own server on a CPU: takes its flags. SGLang's child processes run the top of this file as well."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "plugin"))

import anabranch_torch_cpu  # type: ignore[import-not-found]

anabranch_torch_cpu.prepare()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
