"""What frameworks do by habit, by hand: what a step takes besides its work, and which kernels run apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.formulas import TILE_KEYS
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import machine
from symconfig.cost.work import work_seconds
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.fsdp.behaviour import FSDP
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON, Graphed
from symconfig.graph.derive import derive
from symconfig.graph.derived import Phase
from symconfig.graph.model import blocks
from symconfig.graph.scheme import Scheme
from symconfig.solve.predict import predict
from symconfig.solve.prospect import Setup
from tests.cost.support import cost, stage_bytes
from tests.graph.support import numbers
from tests.sample_configurations import configuration
from tests.sample_models import sample_cluster, sample_model
from tests.solve.naive import tiny


@pytest.mark.parametrize(
    ("framework", "backend", "step_s", "microbatch_s", "more_reserved"),
    [
        (MEGATRON, "megatron", 0.02, 0.0, 0.02),
        (DEEPSPEED, "deepspeed", 0.03, 0.004, 0.05),
        (FSDP, "deepspeed", 0.03, 0.004, 0.05),
    ],
    ids=["Megatron-LM", "DeepSpeed", "FSDP"],
)
def test_what_a_step_takes_besides_its_work(
    framework: Framework, backend: str, step_s: float, microbatch_s: float, more_reserved: float
) -> None:
    """Python, data and logging once a step; hooks and gaps once a microbatch; memory that the allocator cannot use."""
    asked = Setup(
        dp=2,
        micro=1,
        global_batch=6,
        seq_length=512,
        framework=framework,
        backend=backend,  # type: ignore[arg-type]
    )
    found = predict(tiny(), sample_cluster(), asked).predicted
    assert found.time["overhead"] == pytest.approx(step_s + 3 * microbatch_s)
    assert found.reserved_bytes == pytest.approx(found.peak_bytes * (1 + more_reserved))


AMONG = {"dispatch", "expert_gate_up_proj", "expert_activation", "expert_down_proj", "combine"}


@pytest.mark.parametrize("graphed", GRAPHED)
def test_what_cuda_graphs_replay_costs_the_host_nothing(graphed: Graphed) -> None:
    found = cost(sample_model("mixtral-8x7b"), ep=4, dp=4, habits={"graphed": GRAPHED[graphed]})
    layer = next(block for block in found.table.blocks if block.derived.name == "moe")
    free = {op for (op, _), seconds in layer.host_s.items() if not seconds.any()}
    every = {op for op, _ in layer.derived.modules}
    some = {"none": set(), "router": {"mlp_norm", "router", "route"}, "outside experts": every - AMONG}
    assert free == some.get(graphed, every)
    dense = cost(tiny(), habits={"graphed": GRAPHED["router"]}).table.blocks[1]
    assert all(seconds.all() for seconds in dense.host_s.values())


def test_a_launch_that_blocks_adds_the_hosts_time_to_every_operator_and_collective() -> None:
    """With CUDA_LAUNCH_BLOCKING=1 the GPU is idle from one kernel's end to the next one's launch."""
    model = sample_model("llama2-13b")
    beside, blocked = (
        cost(model, tp=2, micro=4, habits={"blocking_launches": each}).table.blocks for each in (False, True)
    )
    for one, other in zip(beside, blocked, strict=True):
        for key, t in one.work_s.items():
            assert other.work_s[key] == pytest.approx(t + one.host_s[key])
        for t, more in zip(one.full_comm_s, other.full_comm_s, strict=True):
            assert more == pytest.approx(t + MEGATRON.host_kernel_s * (t > 0))


def test_tensors_beside_gradients_take_bytes_of_every_parameter() -> None:
    plain, more = (cost(tiny(), dp=2, habits={"beside_bytes": each}) for each in (0.0, 4.0))
    (before,), (after,) = (stage_bytes(parts, "gradients") for parts in (plain, more))
    assert after == pytest.approx(before * (1 + 4.0 / plain.setting.bytes.gradient))


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


TOKENS = 2**16
WINDOW = 128.0


def attention_s(block: str, phase: Phase) -> float:
    """Of one layer on GB300, whose windows are 128 tokens."""
    made = sample_model("gpt-oss-120b")
    values = {**numbers(made, seq_length=TOKENS), "keys_full": TOKENS / 2, "keys_window": WINDOW}
    derived = derive(blocks(made, MEGATRON.implementation)[block], Scheme(False))
    rates = machine(load_cluster("gb300-nvl72"), "mxfp8")
    seconds = work_seconds(derived, Lattice(values, 1), rates, MEGATRON)
    return float(seconds["flash_attention", phase][0])


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT])
def test_a_sliding_window_costs_whole_tiles(phase: Phase) -> None:
    share = attention_s("moe_window", phase) / attention_s("moe", phase)
    assert share == pytest.approx((WINDOW + TILE_KEYS) / (TOKENS / 2 + TILE_KEYS), rel=0.02)
