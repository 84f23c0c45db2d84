"""Every framework by name."""

from __future__ import annotations

from dataclasses import replace

from symconfig.cost.framework import Framework
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.fsdp.behaviour import FSDP
from symconfig.frameworks.megatron.behaviour import MEGATRON

FRAMEWORKS = {framework.name: framework for framework in (MEGATRON, DEEPSPEED, FSDP)}


def alone(framework: Framework) -> Framework:
    """What `beside_another` was made from, whose habits are all its name's."""
    return replace(framework, hide=FRAMEWORKS[framework.name].hide)
