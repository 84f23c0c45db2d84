"""Every option of a framework says where its standing is known from, and is used at its example."""

from __future__ import annotations

import pytest

from symconfig.frameworks.backend import Maturity, Option
from symconfig.frameworks.constraint import FIXED, Fixed
from symconfig.frameworks.deepspeed import constraints as deepspeed
from symconfig.frameworks.deepspeed.constraints import DEEPSPEED
from symconfig.frameworks.megatron.constraints import MEGATRON
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.frameworks.megatron.maturity import OPTIONS
from symconfig.plans.configuration_set import ConfigurationSet

FLAGS = {
    "activation_offload": ("--fine-grained-activation-offloading",),
    "optimizer_offload": ("--optimizer-cpu-offload",),
    "user_buffers": ("--tp-comm-overlap",),
    "deepep": ("--moe-enable-deepep",),
    "hybridep": ("--moe-flex-dispatcher-backend",),
    "moe_overlap": ("--overlap-moe-expert-parallel-comm",),
    "cuda_graphs": ("--enable-cuda-graph", "--cuda-graph-impl"),
    "fp8_param_gather": ("--fp8-param-gather",),
    "fused_loss": ("--cross-entropy-fusion-impl",),
}


EVERY = (*OPTIONS, *deepspeed.OPTIONS)


@pytest.mark.parametrize("option", EVERY, ids=[option.name for option in EVERY])
def test_an_option_is_used_at_its_example_and_says_its_source(option: Option) -> None:
    fixed = Fixed(**{name: value for name, value in option.example.items() if name in FIXED})
    point = ConfigurationSet(**{name: value for name, value in option.example.items() if name not in FIXED})
    assert option.used(fixed, point)
    assert not option.used(Fixed(), ConfigurationSet())
    if option.maturity is not None:
        assert option.why
        assert not option.why.endswith(".")
        assert option.source
        assert {option.since, option.until} - {None} <= set(versions())


def test_names_are_unique_and_no_constraint_has_one() -> None:
    for table in (OPTIONS, deepspeed.OPTIONS):
        assert len({option.name for option in table}) == len(table)
    assert not {option.name for option in EVERY} & {constraint.name for constraint in (*MEGATRON, *DEEPSPEED)}


@pytest.mark.parametrize("name", FLAGS)
def test_an_option_is_neither_young_nor_mended_before_its_flag(name: str) -> None:
    option = next(one for one in OPTIONS if one.name == name)
    for version in versions()[1:]:
        standing = option.standing(version)
        if standing is not None and standing.maturity is Maturity.YOUNG:
            assert any(flags(version).known(flag) for flag in FLAGS[name]), version
