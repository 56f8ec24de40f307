"""The platform that SGLang is told to run on: a CPU without SGLang's own kernels."""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """An out-of-tree platform, so that operators take their plain PyTorch form."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """PyTorch's own attention."""
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        """The plain PyTorch form of each operator."""
        return "native"

    def is_pin_memory_available(self, device: object = None) -> bool:
        """There is no device to pin memory for."""
        return False
