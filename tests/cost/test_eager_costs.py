"""What a framework pays apart from its products: sums of gradients, passes around the optimizer, blocking messages."""

from dataclasses import replace

import pytest

from symconfig.cost.framework import Framework
from symconfig.cost.machine import machine
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.solve.predict import predict
from tests.sample_configurations import configuration

MICROBATCHES = 16
PLAIN = replace(
    MEGATRON,
    bytes=replace(MEGATRON.bytes, gradient=1.0),  # read and written once: nothing beside the product's own result
    hide=replace(MEGATRON.hide, data=0.0, tp_backward=0.0),
)
MACHINE = machine(load_cluster("a100-80gb"), "bf16", gpus=8)
HBM = float(MACHINE.hbm_bytes_per_s)
LAYERS = 40 * (4 * 5120**2 + 3 * 5120 * 13824)  # weights of Llama-2-13B's matrix products
HEAD = 5120 * 32000


def seconds(framework: Framework, pp: int = 1, zero: int = 1) -> dict[str, float]:
    asked = configuration(
        pp=pp, dp=8 // pp, micro=1, global_batch=MICROBATCHES * 8 // pp, seq_length=2048, zero=zero, framework=framework
    )
    return predict(load_model("llama2-13b"), load_cluster("a100-80gb"), asked).predicted.time


def test_each_microbatch_pays_for_adding_its_gradients() -> None:
    more = seconds(replace(PLAIN, accumulated_bytes=6.0))["compute"] - seconds(PLAIN)["compute"]
    launches = (4 * 40 + 1) * float(MACHINE.launch_s)
    assert more == pytest.approx(MICROBATCHES * (6 * (LAYERS + HEAD) / HBM + launches), rel=1e-3)


def test_reducing_to_every_rank_costs_what_no_sharding_costs() -> None:
    everywhere = replace(PLAIN, all_reduced_gradients=True)
    part = "data-parallel communication"
    gathered = seconds(replace(PLAIN, reduced_bytes=0.0))[part]
    assert seconds(everywhere)[part] - gathered == pytest.approx(seconds(PLAIN, zero=0)[part], rel=0.01)
    assert seconds(everywhere)[part] > seconds(PLAIN)[part]
