"""SGLang on plain PyTorch, on any x86_64 or arm64 CPU: what has to be so before sglang is imported.

SGLang finds the platform through the entry point in the dist-info folder beside this file. This runs in the
environment that `anabranch launch --profile cpu --build` makes, not in Anabranch's own.
"""

from __future__ import annotations

import os
from importlib.metadata import version

_ENVIRONMENT = {
    "SGLANG_PLATFORM": "anabranch_torch_cpu",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",
    "TORCHDYNAMO_DISABLE": "1",
}
_kept: list[object] = []


def activate() -> str:
    """Where SGLang finds the platform's class."""
    return "anabranch_torch_cpu_platform.TorchCpuPlatform"


def prepare() -> None:
    """Set the environment, and make torchvision importable. Call it first, in every process."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import torch
    from torch import library as operators

    if torch.version.cuda is None and "+cpu" not in version("torchvision"):
        # A CUDA build of torchvision cannot load its operators beside a CPU build of torch, and refuses to be
        # imported without their schemas. Nothing here calls them.
        schemas = operators.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(schemas)
