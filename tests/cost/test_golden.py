"""The cost model's constants: what each gives on a sample cluster, worked out by hand or recorded.

Every value here moves where a constant moves by a fifth. One that moves on purpose is written anew, with its reason in
the commit; seconds and bytes by part of whole plans are what `python -m tests.cost.test_golden` prints.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from symconfig.cost.formulas import attention_s, product_s
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import machine, slowest
from symconfig.cost.step import HOST_SHARE, states
from symconfig.cost.table import GRAPH_BYTES
from symconfig.cost.work import _products as products_s
from symconfig.cost.work import _scanned as scanned_s
from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.behaviour import ORTHOGONAL_BYTES
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, FSDP, NARROW_REDUCTION
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.behaviour import EXPERTS_HIDE, MEGATRON, USER_BUFFERS
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.dims import ONE, Monomial
from symconfig.graph.model import derived
from tests.cost.support import cost, seconds, stage_bytes
from tests.graph.support import PLAIN
from tests.sample_models import sample_cluster, sample_model
from tests.solve.naive import tiny

A100 = sample_cluster()


def test_the_slowest_of_1024_gpus() -> None:
    assert slowest(1024) == pytest.approx(0.025 * 3.242, rel=0.01)  # the expected maximum of 1,024 deviates


def test_what_a_link_to_the_host_and_a_copy_reach() -> None:
    found = machine(A100, "bf16")
    assert found.host_bytes_per_s == pytest.approx(0.8 * A100.host.link_bytes_per_s.value)
    assert found.copy_bytes_per_s == pytest.approx(0.89 * A100.gpu.memory_bandwidth_bytes_per_s.value)


def test_grouped_products_in_fp8_on_hopper() -> None:
    assert [machine(load_cluster(name), "fp8").grouped_cast for name in ("h100", "b200")] == [1.6, 1.0]


def test_attention_pays_for_whole_tiles_and_for_exponentials() -> None:
    """384 keys more than are attended to; on Hopper exponentials take as long as 64 channels."""
    gpu = replace(machine(A100, "bf16"), launch_s=0.0, attention_flops=1.0, softmax_channels=64.0)
    assert float(attention_s(gpu, 1.0, 616.0, 128.0, True)) == pytest.approx(2 * 2 * 1000 * 128)
    assert float(attention_s(gpu, 1.0, 616.0, 64.0, True)) == pytest.approx(2 * 2 * 1000 * 128 * 128 / 192)


@pytest.mark.parametrize(
    ("height", "width", "rate", "exposed"),
    [
        (256, 128, 1.0, 1.0),
        (128, 256, 1.0, 1.0),
        (128, 128, 0.93, 0.5),
        (64, 256, 0.87, 0.5),
        (128, 64, 0.75, 0.25),
        (64, 64, 0.6, 0.125),
    ],
)
def test_a_product_of_a_tile_for_each_unit_runs_at_the_rate_of_that_tile(
    height: int, width: int, rate: float, exposed: float
) -> None:
    gpu, k = replace(machine(A100, "bf16"), launch_s=0.0, k_half=500.0), 4096.0
    ideal = 2.0 * 108 * height * width * k / (0.8 * gpu.high_peak_flops)
    found = float(product_s(gpu, 108.0, height, width, k, efficiency=0.8, element_bytes=0.0))
    assert found == pytest.approx(ideal / (rate * k / (k + exposed * 500.0)))


def test_a_thin_product_in_fp8_moves_a_byte_an_element_and_its_cast() -> None:
    """Both operands in 8 bits and the result, of which the first was read in 16 bits and written in 8."""
    gpu = replace(machine(load_cluster("h100"), "fp8"), launch_s=0.0)
    thin = Matmul("thin", Phase.FORWARD, ONE, *(Monomial(Fraction(size)) for size in (8192, 8192, 32)), True, ONE)
    block = derived(sample_model(), MEGATRON.implementation, PLAIN)["dense"]
    ((found,),) = products_s([thin], block, Lattice({"tp": 1.0}, 1), gpu, MEGATRON)
    moved = 2 * 8192 * 32 + 8192 * 8192 + gpu.cast_bytes * 8192 * 32
    assert found == pytest.approx(moved / gpu.hbm_bytes_per_s)


def test_a_chunked_scan_has_a_rate_of_its_own() -> None:
    """0.65 TFLOP/s on each of 108 compute units, whatever the tensor cores could do."""
    many = Traffic("scan", Phase.FORWARD, moved=(), turns=ONE, products=((Monomial(Fraction(10**9)), 1),) * 3)
    few, lattice, gpu = replace(many, products=many.products[:2]), Lattice({}, 1), machine(A100, "bf16")
    assert float(scanned_s(many, lattice, gpu)[0]) == pytest.approx(6e9 / (0.65e12 * 108))
    assert float(scanned_s(few, lattice, gpu)[0]) == pytest.approx(4e9 / (0.8 * 312e12))


def test_zero_3_holds_two_gathered_blocks() -> None:
    sums = (found := cost(tiny(), dp=8, zero=3, backend="fsdp")).sums
    gathered = float(states(sums, found.points, found.setting)["weights"].max() - 2.0 * sums.dense.max() / 8)
    assert gathered == pytest.approx(2 * 2.0 * sums.largest.max())


def test_how_long_the_host_takes_to_launch_experts() -> None:
    """An operator takes 50 us; each further turn of a loop over experts a third of one; scales of blocks treble it; two
    microbatches at once take 1.4 times as long."""
    model, gpu = tiny("mixtral-8x7b"), load_cluster("b200")
    paired = {"hide": replace(BACKENDS["megatron"].usual.hide, experts=0.9)}

    def host(**asked: Any) -> float:
        block = next(block for block in cost(model, cluster=gpu, **asked).table.blocks if block.derived.legs)
        return float(np.max(block.host_s["expert_down_proj", Phase.FORWARD]))

    usual = host(precision="bf16")
    assert usual == pytest.approx(50e-6 * machine(gpu, "bf16").launching * (1 + 7 / 3))
    assert host(precision="mxfp8") == pytest.approx(3 * usual)
    assert host(precision="bf16", habits=paired, dp=2, ep=2) == pytest.approx(1.4 * usual * (1 + 3 / 3) / (1 + 7 / 3))


def test_what_frameworks_overlap_and_spend() -> None:
    """Assumed or fitted: symconfig/frameworks/*/behaviour.py says which and from what."""
    usual = {name: backend.usual for name, backend in BACKENDS.items()}
    assert {name: (f.hide.data, f.hide.sharded_weights) for name, f in usual.items()} == {
        "megatron": (0.8, 0.8),
        "deepspeed": (0.7, 0.7),
        "fsdp": (0.9, 0.9),
    }
    hide = usual["megatron"].hide
    assert (hide.tp_backward, hide.pp, hide.cp_forward, hide.cp_backward, hide.host) == (0.5, 0.8, 0.9, 0.9, 0.5)
    assert USER_BUFFERS == {"tp_forward": 0.75, "tp_backward": 0.75, "tp_pieces": 4}
    assert (EXPERTS_HIDE, GRAPH_BYTES, ORTHOGONAL_BYTES, HOST_SHARE) == (0.9, 2 * 2**30, 18.0, 0.8)
    assert (FSDP.copied_bytes, NARROW_REDUCTION["copied_bytes"], EAGER_ADAM["adam_bytes"]) == (10.0, 4.0, 92.0)
    spent = {name: (f.step_overhead_s, f.microbatch_overhead_s, f.fragmentation) for name, f in usual.items()}
    assert spent == {"megatron": (0.02, 0.0, 0.02), "deepspeed": (0.03, 0.004, 0.05), "fsdp": (0.03, 0.004, 0.05)}


def priced(name: str) -> dict[str, float]:
    """Seconds by part, and GB of the fullest stage by part."""
    parts = cost(sample_model("llama2-13b"), **PLANS[name])
    memory = {f"{part}, GB": max(stage_bytes(parts, part)) / 1e9 for part in parts.cost.memory}
    return {part: value for part, value in (seconds(parts) | memory).items() if value}


# Of Megatron-LM, tests/oracle has every part.
PLANS: dict[str, dict[str, Any]] = {
    "ZeRO 2": {"dp": 16, "zero": 2, "microbatches": 4, "backend": "deepspeed"},
    "ZeRO 3": {"dp": 16, "zero": 3, "microbatches": 4, "backend": "deepspeed", "modules": frozenset({"layer"})},
    "FSDP": {"dp": 16, "zero": 3, "microbatches": 2, "backend": "fsdp"},
}
RECORDED: dict[str, dict[str, float]] = {
    "ZeRO 2": {
        "compute": 3.6694, "data-parallel communication": 0.27464, "optimizer": 0.018094, "overhead": 0.046,
        "activations, GB": 19.14, "head and loss, GB": 0.47711, "working set, GB": 0.53281, "weights, GB": 26.032,
        "gradients, GB": 1.627, "optimizer state, GB": 9.7619,
    },
    "ZeRO 3": {
        "compute": 3.6694, "recompute": 1.1694, "data-parallel communication": 0.42022, "optimizer": 0.018094,
        "overhead": 0.046, "activations, GB": 0.83888, "head and loss, GB": 0.47711, "working set, GB": 0.70617,
        "weights, GB": 2.8958, "gradients, GB": 1.627, "optimizer state, GB": 9.7619,
    },
    "FSDP": {
        "compute": 1.8347, "data-parallel communication": 0.25516, "optimizer": 0.018094, "overhead": 0.038,
        "activations, GB": 19.14, "head and loss, GB": 0.73925, "working set, GB": 0.53281, "weights, GB": 2.8958,
        "gradients, GB": 1.627, "optimizer state, GB": 9.7619,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans_cost_what_was_recorded(name: str) -> None:
    assert priced(name) == pytest.approx(RECORDED[name], rel=1e-3)


if __name__ == "__main__":
    for each in PLANS:
        print(f'    "{each}": {{')
        for part, value in priced(each).items():
            print(f'        "{part}": {value:.5g},')
        print("    },")
