"""The CPU as verl's device, under a name of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class Device(str):
    """The name of the GPU that is not there: equal to the host's, and a kind of its own."""


GPU = Device("cpu")


def platform() -> Any:
    """Return verl's device, as a CPU has it."""
    from verl.plugin.platform import PlatformBase

    def nothing(*given: Any, **options: Any) -> int:
        return 0

    ignored = "empty_cache set_device memory_allocated memory_reserved max_memory_allocated max_memory_reserved"
    module = SimpleNamespace(
        **dict.fromkeys(ignored.split(), nothing),
        **{name: getattr(torch.cpu, name) for name in ("current_device", "device_count", "synchronize")},
        is_available=lambda: False,
        get_device_name=lambda: "CPU",
        mem_get_info=lambda *given: (0, 0),
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    made: dict[str, Any] = dict.fromkeys(PlatformBase.__abstractmethods__, nothing)
    made |= {
        "device_name": property(lambda self: GPU),
        "vendor_name": property(lambda self: "nvidia"),
        "device_module": property(lambda self: module),
        "current_device": lambda self: torch.device("cpu"),
        "communication_backend_name": lambda self: "gloo",
        "visible_devices_envvar": lambda self: "CUDA_VISIBLE_DEVICES",
        "ray_resource_name": lambda self: "GPU",
        "ray_noset_envvars": lambda self: [],
    }
    return type("Cpu", (PlatformBase,), made)()
