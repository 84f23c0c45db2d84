"""How unevenly routers load GPUs with experts, and what waits for that, in words."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.task import Task


def uneven_loads(of: Mapping[str, tuple[float, float]], task: Task) -> str:
    """Return a sentence without its full stop. of: `Predicted.untrained`."""
    load, layer = of["load"], of["layer_load"]
    when = "While the router is untrained" if task == "pretrain" else "On data of one kind"
    return (
        f"{when}, the fullest GPU's experts get {load[0]:.2f} to {load[1]:.2f} times the mean over its layers, in one "
        f"of them up to {layer[0]:.1f} to {layer[1]:.1f} times"
    )


def waits(of: Mapping[str, tuple[float, float]], task: Task) -> str:
    """Return a sentence without its full stop, of what time it takes. of: `Predicted.untrained`."""
    load = of["waited_load"]
    each = "Once it is balanced, each layer" if task == "pretrain" else "Each layer"
    return f"{each} waits for the GPU whose experts get most, {load[0]:.2f} to {load[1]:.2f} times the mean"
