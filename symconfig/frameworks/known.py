"""Every framework by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from symconfig.cost.framework import Framework
from symconfig.frameworks.backend import Backend
from symconfig.frameworks.deepspeed.backend import DEEPSPEED
from symconfig.frameworks.fsdp.behaviour import FSDP
from symconfig.frameworks.megatron.backend import MEGATRON
from symconfig.frameworks.megatron.behaviour import MEGATRON_LOCAL

# What plans are made for, the usual one first.
BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (MEGATRON, DEEPSPEED)}
# What runs are measured with, in the cost model's terms.
FRAMEWORKS = {framework.name: framework for framework in (*(each.usual for each in BACKENDS.values()), FSDP)}

# With layers of their own, where they usually run another library's (`Framework.engine`).
OWN_LAYERS = {MEGATRON_LOCAL.name: MEGATRON_LOCAL}


def usual_backend(adapted: bool) -> Backend:
    """Return the framework of a job that names none. adapted: the model has adapters."""
    return next(each for each in BACKENDS.values() if each.adapters or not adapted)


def alone(framework: Framework) -> Framework:
    """Return what `beside_another` was made from, whose overlaps are all its name's."""
    return replace(framework, hide=FRAMEWORKS[framework.name].hide)
