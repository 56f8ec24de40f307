"""The command line that starts SGLang for a profile, and whether the installed version knows its flags."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Sequence

from anabranch.orchestrator.errors import ConfigurationError, InvalidParameter, MissingExtra
from anabranch.serving.launch.environment import BUILD_COMMAND, CPU, CpuEnvironment, cpu_environment
from anabranch.serving.launch.profiles import Profile, profile_named, speculation_named

_CPU_SCRIPT = str(CPU / "launch_server.py")
_ASK = """
import sys
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    import anabranch_torch_cpu
    anabranch_torch_cpu.prepare()
import importlib.util
if importlib.util.find_spec("sglang") is None:
    sys.exit(3)
import argparse, json
from sglang.srt.server_args import ServerArgs
from sglang.version import __version__
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([__version__, sorted(parser._option_string_actions)]))
"""
_NOT_INSTALLED = 3
_ASK_S = 300.0


def command(
    profile: str,
    *,
    model: str | None = None,
    port: int,
    host: str = "127.0.0.1",
    draft_model: str | None = None,
    speculative: str | None = None,
    tp: int | None = None,
    memory: float | None = None,
    extra_flags: Sequence[str] = (),
) -> list[str]:
    """The command line that starts SGLang.

    Args:
        profile: `cpu` or `gpu`.
        model: a path or a name; for `cpu` also `smollm2` (the default) and `tiny`.
        draft_model: path or name of the model that drafts, for `EAGLE3` and `STANDALONE`.
        speculative: `EAGLE3`, `STANDALONE` or `NGRAM`.
        tp: GPUs that share the model.
        memory: part of the free memory that weights and cache take; the profile's own where None.
        extra_flags: further flags of SGLang; they come last and win.

    Raises:
        UnknownName: no such profile or algorithm.
        InvalidParameter: these do not go together.
        ConfigurationError: the environment for `cpu` is not built.
    """
    chosen = profile_named(profile)
    flags = {"--host": host, "--port": str(port), **chosen.flags}
    flags |= _speculation(chosen, speculative, draft_model)
    if tp is not None:
        flags["--tp-size"] = str(tp)
    if memory is not None:
        flags["--mem-fraction-static"] = str(memory)
    words = [word for flag, value in flags.items() for word in (flag, value) if word]
    if chosen.name == "cpu":
        return [*_cpu_start(model or "smollm2"), *words, *extra_flags]
    if model is None:
        raise InvalidParameter("model", "is needed: a path, or a name on a model hub")
    return [sys.executable, "-m", "sglang.launch_server", "--model-path", model, *words, *extra_flags]


def check_flags(command: Sequence[str], *, python: str | None = None) -> str:
    """Compare the flags with those of the installed SGLang, and return its version. Takes some seconds.

    Args:
        python: the interpreter that SGLang is installed for; the command's own where None.

    Raises:
        ConfigurationError: a flag is unknown there; the message names the nearest one.
        MissingExtra: SGLang is not installed there.
    """
    version, known = _options(python or command[0], cpu=_CPU_SCRIPT in command)
    for flag in (word.partition("=")[0] for word in command if word.startswith("--")):
        if flag not in known:
            near = difflib.get_close_matches(flag, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigurationError(f"SGLang {version} has no flag {flag}{hint}")
    return version


def _cpu_start(model: str) -> list[str]:
    environment = _built()
    known = environment.models.get(model)
    named = ["--served-model-name", model] if known else []
    return [str(environment.python), _CPU_SCRIPT, "--model-path", str(known or model), *named]


def _built() -> CpuEnvironment:
    environment = cpu_environment()
    if environment is None:
        raise ConfigurationError(f"SGLang for the CPU is not built yet: {BUILD_COMMAND}")
    return environment


def _speculation(profile: Profile, speculative: str | None, draft_model: str | None) -> dict[str, str]:
    if speculative is None:
        if draft_model is not None:
            raise InvalidParameter("draft_model", "needs a speculative algorithm: EAGLE3 or STANDALONE")
        return {}
    if not profile.speculative:
        raise InvalidParameter("speculative", f"the profile {profile.name!r} has no speculative decoding")
    algorithm = speculation_named(speculative)
    if algorithm.draft_model != (draft_model is not None):
        needs = "needs a draft model" if algorithm.draft_model else "takes no draft model"
        raise InvalidParameter("draft_model", f"{speculative.upper()} {needs}")
    draft = {"--speculative-draft-model-path": draft_model} if draft_model else {}
    return {"--speculative-algorithm": speculative.upper(), **draft, **algorithm.flags}


def _options(python: str, *, cpu: bool) -> tuple[str, list[str]]:
    """The version and the flags of the SGLang that this interpreter has."""
    plugin = [str(CPU / "plugin")] if cpu else []
    try:
        asked = subprocess.run(
            [python, "-c", _ASK, *plugin], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{python} does not say which flags SGLang has: {error}") from error
    if asked.returncode == _NOT_INSTALLED:
        raise MissingExtra(f"SGLang (it is not installed for {python})", "sglang")
    try:
        version, options = json.loads(asked.stdout.strip().rpartition("\n")[2])
    except ValueError:
        reason = asked.stderr.strip().rpartition("\n")[2]
        raise ConfigurationError(f"SGLang cannot be imported by {python}: {reason}") from None
    return version, options
