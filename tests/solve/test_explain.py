"""A plan explained: its strategy tuples (Megatron's worked example, bytes counted apart) and each tensor's fate."""

from __future__ import annotations

from math import prod
from typing import Literal

import pytest

import symconfig
from symconfig.plans.plan import Plan
from symconfig.solve.explain import Strategies, StrategyLine, explain, strategies
from symconfig.solve.predict import restore
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny


def planned(
    model: str, gpus: int = 16, backend: Literal["megatron", "deepspeed"] = "megatron", **pins: int | str
) -> Plan:
    limits = {"memory_margin": 0.0}
    return symconfig.plan(
        model=model,
        cluster="b200",
        gpus=gpus,
        global_batch_size=64,
        seq_length=4096,
        backend=backend,
        pins=pins,
        limits=limits,
        top=1,
    ).plan


def of(plan: Plan) -> Strategies:
    return strategies(restore(plan, plan.best), plan.cluster)


def lines(found: Strategies, kind: str) -> dict[str, StrategyLine]:
    return {line.tensor: line for line in next(block for block in found.blocks if block.kind == kind).lines}


@pytest.fixture(scope="module")
def dense() -> Plan:
    return planned("llama2-7b", tp=4, cp=2, dp=2, pp=1, sp="on", cp_comm="p2p", zero=1)


def told(line: StrategyLine) -> set[str]:
    return {f"{one.phase} {one.kind} {'.'.join(one.axes)}" for one in line.collectives}


def test_one_layer_with_sequence_parallelism_is_the_worked_example(dense: Plan) -> None:
    found = lines(of(dense), "dense")
    norm, out, k = found["mlp_norm"], found["attention_out"], found["k_rotated"]
    assert (norm.made.parts, norm.made.axes) == ((2, 8, 1), (("dp",), ("tp", "cp"), ()))
    assert [strategy.parts for strategy, _ in norm.used] == [(2, 2, 1)]
    assert told(norm) == {"forward all-gather tp", "backward reduce-scatter tp", "backward all-gather tp"}
    assert out.made.partial == ("tp",)
    assert told(out) == {"forward reduce-scatter tp", "backward all-gather tp"}
    assert (k.made.parts, k.used[0][0].parts) == ((2, 2, 4, 1), (2, 1, 4, 1))
    assert "forward all-gather cp" in told(k)
    assert told(found["mlp_norm.weight"]) == {
        "step reduce-scatter cp.dp", "step all-reduce tp", "step all-gather cp.dp"
    }  # fmt: skip
    qkv = found["qkv_proj.weight"]
    assert (qkv.made.parts, qkv.made.flat) == ((1, 4), ("cp", "dp"))


def test_levels_are_those_that_groups_cross(dense: Plan) -> None:
    found = of(dense)
    assert [(axis.name, axis.ranks, axis.level) for axis in found.axes] == [
        ("tp", 4, "nvlink"), ("cp", 2, "nvlink"), ("dp", 2, "rail")
    ]  # fmt: skip
    assert {one.level for one in lines(found, "dense")["mlp_norm"].collectives} == {"nvlink"}
    assert {one.level for one in lines(found, "dense")["qkv_proj.weight"].collectives} == {"rail"}


def test_bytes_that_wait_for_the_backward_are_the_tensor_over_its_parts(dense: Plan) -> None:
    micro, layer = dense.best.configuration.micro, {line.name: line.bytes for line in explain(dense).tensors}
    found = lines(of(dense), "dense")
    sizes = {
        "batch": micro * 2,
        "sequence": 4096,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
    }
    for name in ("q_rotated", "k_rotated", "v", "gate", "up", "layer_in"):
        line = found[name]
        assert layer[name] == prod(sizes[dim] for dim in line.dims) / prod(line.made.parts) * 2


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (0, {"step all-reduce dp"}),
        (1, {"step all-reduce dp", "step all-gather dp"}),
        (2, {"microbatch all-reduce dp", "step all-gather dp"}),
        (3, {"microbatch all-gather dp", "microbatch reduce-scatter dp"}),
    ],
)
def test_the_stage_of_zero_says_how_gradients_travel(zero: int, expected: set[str]) -> None:
    plan = planned("qwen2.5-7b", 8, "deepspeed", zero=zero, tp=1, cp=1)
    line = lines(of(plan), "dense")["o_proj.weight"]
    assert told(line) == expected
    assert line.made.flat == (("dp",) if zero else ())


PLAIN = {"tp": "1", "pp": "1", "activation_offload": "0"}


@pytest.mark.parametrize(
    ("pins", "input_", "heads", "statistics"),
    [
        ({"recompute": "none"}, "kept", "kept", "kept"),
        ({"recompute": "selective:core_attn"}, "kept", "kept", "recomputed"),
        ({"recompute": "full"}, "kept", "recomputed", "recomputed"),
    ],
)
def test_fate_of_every_tensor(pins: dict[str, str], input_: str, heads: str, statistics: str) -> None:
    plan = search(tiny(), sample_cluster(), job(2, 2, pins={**PLAIN, **pins}))
    fate = {line.name: line.fate for line in explain(plan).tensors}
    assert (fate["layer_in"], fate["attention_heads"], fate["softmax_statistics"]) == (input_, heads, statistics)


def test_offloaded_tensors_are_named() -> None:
    plan = search(tiny(), sample_cluster(), job(2, 2, pins={**PLAIN, "recompute": "none", "activation_offload": "1"}))
    fates = [line.fate for line in explain(plan).tensors]
    assert "offloaded" in fates
    assert "recomputed" not in fates
