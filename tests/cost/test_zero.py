"""Model states and volumes of ZeRO (arXiv 1910.02054) and of Megatron's distributed optimizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.cost import formulas, step
from symconfig.cost.framework import Bytes, Hide, Together
from symconfig.cost.lattice import Array
from symconfig.cost.optimizer import exchange
from symconfig.cost.stages import Stages
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.block import LAYER
from symconfig.solve.predict import predict
from tests.cost.support import cost, seconds, stage_bytes
from tests.sample_configurations import configuration
from tests.sample_models import sample_cluster, sample_model
from tests.solve.naive import tiny

# Table 1: GB on a device for a model of 7.5B, 128B and 1T parameters, at stages 1, 2 and 3. Mixed-precision Adam: fp16
# weights and gradients, 12 bytes of optimizer state. 16 bytes a parameter without ZeRO: 120, 2048 and 16000 GB.
TABLE_1 = {
    (7.5e9, 1): (120, 120, 120),
    (7.5e9, 4): (52.5, 41.3, 30),
    (7.5e9, 16): (35.6, 21.6, 7.5),
    (7.5e9, 64): (31.4, 16.6, 1.88),
    (7.5e9, 256): (30.4, 15.4, 0.47),
    (7.5e9, 1024): (30.1, 15.1, 0.12),
    (128e9, 1): (2048, 2048, 2048),
    (128e9, 4): (896, 704, 512),
    (128e9, 16): (608, 368, 128),
    (128e9, 64): (536, 284, 32),
    (128e9, 1024): (513, 257, 2),
    (1e12, 4): (7000, 5500, 4000),
    (1e12, 16): (4750, 2875, 1000),
    (1e12, 1024): (4011, 2013, 15.6),
}
PAPER = Bytes(weight=2.0, gradient=2.0, optimizer=12.0)


def states(parameters: float, ranks: int, stage: int, sizes: Bytes) -> float:
    """Bytes of all model states on a rank, of as many dense parameters in one block."""
    found = cost(tiny(), dp=8, zero=stage, backend="deepspeed", habits={"all_reduced_gradients": False})
    nothing = {name: np.zeros((1, 1)) for name in Stages.__slots__}
    sums = Stages(**nothing | {"dense": np.array([[parameters]])})
    points = found.points.having(dp=np.array([float(ranks)]))
    return float(sum(part.sum() for part in step.states(sums, points, replace(found.setting, bytes=sizes)).values()))


@pytest.mark.parametrize(("parameters", "ranks"), TABLE_1)
def test_bytes_of_table_1(parameters: float, ranks: int) -> None:
    for stage, printed in zip((1, 2, 3), TABLE_1[parameters, ranks], strict=True):
        digits = len(str(printed).partition(".")[2]) if isinstance(printed, float) else 0
        got = states(parameters, ranks, stage, PAPER) / 1e9
        assert abs(got - printed) <= 10.0**-digits, (stage, got)  # the paper rounds some and cuts others


def communication(microbatches: int, stage: int, whole_gradients: bool = False) -> float:
    """Seconds of data-parallel communication, nothing hidden, no latency, in units of one pass over all weights."""
    cluster = sample_cluster()
    levels = tuple(
        level.model_copy(update={"latency_s": level.latency_s.model_copy(update={"value": 0.0})})
        for level in cluster.levels
    )
    found = cost(
        tiny(),
        dp=8,
        microbatches=microbatches,
        zero=stage,
        backend="deepspeed",
        hide=False,
        cluster=cluster.model_copy(update={"levels": levels}),
        habits={"all_reduced_gradients": whole_gradients},
    )
    weights = float(found.sums.dense.sum()) * DEEPSPEED.bytes.weight
    link = cluster.levels[0].bandwidth_bytes_per_s.value * cluster.kernels.link_efficiency.value
    return seconds(found)["data-parallel communication"] / (weights * 7 / 8 / link)


def test_volumes_are_one_one_and_one_and_a_half_of_an_all_reduce() -> None:
    """Section 7: an all-reduce is 2 passes; stages 1 and 2 reduce-scatter and gather, 2; stage 3 gathers twice, 3."""
    assert [communication(1, stage) for stage in range(4)] == pytest.approx([2, 2, 2, 3], rel=1e-3)


def test_with_accumulation_stage_2_reduces_and_stage_3_gathers_every_microbatch() -> None:
    """DeepSpeed's stage_1_and_2.py: gradients are reduced at the boundary unless they are partitioned."""
    assert [communication(4, stage) for stage in range(4)] == pytest.approx([2, 2, 4 + 1, 3 * 4], rel=1e-3)


def test_deepspeed_all_reduces_what_its_stages_1_and_2_share_out() -> None:
    """deepspeed/runtime/zero/stage_1_and_2.py, average_tensor: two passes where one would do."""
    assert DEEPSPEED.all_reduced_gradients
    assert [communication(4, stage, True) for stage in range(4)] == pytest.approx([2, 3, 2 * 4 + 1, 3 * 4], rel=1e-3)


def test_frozen_weights_have_no_gradients_and_no_optimizer_state() -> None:
    found = cost(tiny("llama2-13b-lora"), dp=2, backend="deepspeed")
    trained = 4 * 16 * ((512 + 512) + (512 + 256))  # q_proj and v_proj of four layers
    assert stage_bytes(found, "gradients")[0] == trained * DEEPSPEED.bytes.gradient
    assert stage_bytes(found, "optimizer state")[0] == trained * DEEPSPEED.bytes.optimizer
    whole = cost(tiny(), dp=2, backend="deepspeed")
    extra = stage_bytes(found, "weights")[0] - stage_bytes(whole, "weights")[0]
    assert extra == trained * DEEPSPEED.bytes.weight


@pytest.mark.parametrize("ep", [1, 4])
def test_frozen_experts_in_host_memory_are_counted_one_by_one(ep: int) -> None:
    """Mixtral with adapters beside q and v: every weight has 2 bytes, an adapter's 12 of Adam beside it."""
    adapter = sample_model("llama2-13b-lora").adapter
    model = sample_model("mixtral-8x7b", num_hidden_layers=2, adapter=adapter.model_dump())
    hidden, heads, width = 4096, 8 * 128, 14336
    experts = 2 * 8 * 3 * hidden * width
    others = 2 * (2 * hidden * hidden + 2 * hidden * heads + 8 * hidden + 2 * hidden) + 2 * 32000 * hidden + hidden
    adapters = 2 * 16 * ((hidden + hidden) + (hidden + heads))
    found = predict(
        model,
        sample_cluster("a100-80gb"),
        configuration(
            dp=8,
            ep=ep,
            micro=1,
            global_batch=8,
            seq_length=2048,
            zero=3,
            framework=DEEPSPEED,
            backend="deepspeed",
            optimizer_offload=1.0,
            param_offload=True,
        ),
    )
    # Each expert has 8 / ep replicas, which share it: as many bytes a rank as of 8 that share all.
    assert found.predicted.host_bytes == pytest.approx((2 * (experts + others + adapters) + (12 + 4) * adapters) / 8)


@pytest.mark.parametrize("zero", [1, 3])
def test_a_group_gathers_by_itself_and_its_shares_are_summed_over_the_groups(zero: int) -> None:
    """Two groups of four of eight ranks on a node: a ring of four within, an all-reduce of a quarter between two."""
    whole = cost(tiny(), dp=8, zero=zero, habits={"optimizer_instances": 2})
    sums, setting, sizes = whole.sums, whole.setting, whole.setting.bytes
    blocks = sum(setting.pipelines.only.stages[0].counts) if setting.framework.together is Together.BLOCK else 1

    def over(amount: Array, passes: float, ranks: int, stride: int) -> Array:
        seconds: Array = blocks * formulas.ring_s(amount / blocks, passes, ranks, stride, **setting.machine.levels)
        return seconds

    found, reduced = exchange(sums, whole.points, setting), sizes.gradient * sums.dense
    np.testing.assert_allclose(found.gather, over(sizes.weight * sums.dense, 1.0, 4, 1))
    np.testing.assert_allclose(found.reduce, over(reduced, 1.0, 4, 1) + over(reduced / 4, 2.0, 2, 4))


def test_frozen_weights_are_gathered_in_16_and_in_4_bits() -> None:
    adapter = {"method": "qlora", "r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj"]}
    whole = cost(sample_model("llama2-13b", adapter=adapter), dp=8, zero=3, backend="deepspeed")
    sums, setting, sizes = whole.sums, whole.setting, whole.setting.bytes
    assert sums.quantised.min() > sums.frozen.min() > 0
    amount = sizes.weight * sums.dense + sizes.frozen * sums.frozen + sizes.quantised * sums.quantised
    each = formulas.ring_s(amount / sums.matrices, 1.0, 8.0, 1.0, **setting.machine.levels)
    np.testing.assert_allclose(exchange(sums, whole.points, setting).gather, sums.matrices * each)


@pytest.mark.parametrize(("zero", "messages"), [(1, 1), (3, 4 * 40 + 2)])
def test_matrices_are_gathered_one_by_one_at_stage_3(zero: int, messages: int) -> None:
    """Of a layer: query, key and value; output; gate and up; down. And the look-up and the head."""
    whole = cost(sample_model("llama2-13b"), dp=8, zero=zero, habits={"together": Together.MATRIX, "listed": True})
    amount = whole.setting.bytes.weight * whole.sums.dense / messages
    each = formulas.ring_s(amount, 1.0, 8.0, 1.0, **whole.setting.machine.levels) + 8 * 10e-6
    np.testing.assert_allclose(exchange(whole.sums, whole.points, whole.setting).gather, messages * each)


def test_a_layer_too_large_to_be_kept_is_gathered_again_for_each_pass_over_it() -> None:
    """Nothing hides: two gathers and a reduction, and a third gather where the whole layer runs again."""
    model, layer = sample_model("llama2-13b"), 4 * 5120**2 + 3 * 5120 * 13824 + 2 * 5120

    def shown(modules: frozenset[str], reuse: float) -> float:
        habits = {"reuse_elements": reuse, "hide": Hide()}
        parts = cost(model, dp=8, zero=3, microbatches=2, modules=modules, habits=habits)
        return seconds(parts)["data-parallel communication"]

    once, again = shown(frozenset({LAYER}), float(layer)), shown(frozenset({LAYER}), layer - 1.0)
    assert again == pytest.approx(once * 5 / 4, rel=0.01)  # gradients are twice as wide; both ends do not run again
    assert shown(frozenset(), layer - 1.0) == pytest.approx(once)


@pytest.mark.parametrize("name", ["llama2-13b", "mixtral-8x7b"])
@pytest.mark.parametrize("modules", [frozenset[str](), frozenset({LAYER})])
def test_whole_gradients_that_wait_in_a_queue_come_as_activations_go(name: str, modules: frozenset[str]) -> None:
    """Of a billion elements or two blocks; half as many weights are gathered ahead. PyTorch's FSDP and DeepSpeed have
    one block ahead and no queue."""
    queued = MEGATRON.queued_elements
    one, none = (
        cost(sample_model(name), dp=8, zero=3, modules=modules, habits={"queued_elements": size})
        for size in (queued, 0.0)
    )
    gradients, weights, kept, loss = (
        [stage_bytes(each, part)[0] for each in (one, none)]
        for part in ("gradients", "weights", "activations", "head and loss")
    )
    largest = float(none.sums.largest[0, 0])
    waiting = MEGATRON.bytes.gradient * max(queued, 2 * largest)
    assert gradients[0] - gradients[1] == pytest.approx(max(waiting - kept[0] - loss[0], 0.0))
    assert weights[0] - weights[1] == pytest.approx(MEGATRON.bytes.weight * max(queued / 2 - largest, 0.0))


@pytest.mark.parametrize("microbatches", [1, 2])
def test_gradients_that_a_step_gave_up_come_as_activations_go(microbatches: int) -> None:
    """PyTorch's zero_grad: with several microbatches all are there while the second one runs."""
    model = sample_model("llama2-13b")
    found, always = (
        cost(model, microbatches=microbatches, backend="fsdp", modules=frozenset({LAYER}), habits=habits)
        for habits in ({}, {"frees_gradients": False})
    )
    parts = ("gradients", "activations", "head and loss")
    gradients, kept, loss = (stage_bytes(found, part)[0] for part in parts)
    whole = stage_bytes(always, "gradients")[0]
    assert gradients == pytest.approx(whole - (kept + loss) * (microbatches == 1))
