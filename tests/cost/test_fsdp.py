"""FSDP: a collective for each block, contention with what runs beside it, recompute that stops early."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symconfig.cost import formulas
from symconfig.cost.framework import Together
from symconfig.cost.machine import machine
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.behaviour import changed
from symconfig.frameworks.fsdp.behaviour import FSDP
from symconfig.graph.block import LAYER, OPERATORS
from symconfig.graph.derived import recompute_policy
from symconfig.graph.model import derived
from symconfig.graph.scheme import Scheme
from symconfig.solve.predict import Prediction, predict
from tests.sample_configurations import configuration

LEVELS = machine(load_cluster("h100"), "bf16").levels


def ring(amount: float, passes: float, ranks: float) -> float:
    return float(formulas.ring_s(np.array([amount]), passes, np.array([ranks]), np.array([1.0]), **LEVELS)[0])


def test_latency_of_a_gather_grows_with_the_ring_and_of_an_all_reduce_with_its_tree() -> None:
    gather = [ring(1.0, 1.0, ranks) for ranks in (64, 512)]
    reduce = [ring(1.0, 2.0, ranks) for ranks in (64, 512)]
    assert gather[1] / gather[0] == pytest.approx(8, rel=0.1)
    assert reduce[1] / reduce[0] < 2


def plan(model: str, **changes: Any) -> Prediction:
    asked = {"dp": 64, "micro": 2, "global_batch": 128, "seq_length": 4096, "zero": 3, "framework": FSDP} | changes
    return predict(load_model(model), load_cluster("h100"), configuration(**asked))


def test_a_collective_for_each_block_waits_for_each() -> None:
    blocks = plan("llama2-7b", dp=1024, global_batch=2048).predicted.time["data-parallel communication"]
    whole = replace(FSDP, together=Together.STAGE)
    once = plan("llama2-7b", dp=1024, global_batch=2048, framework=whole).predicted.time["data-parallel communication"]
    assert blocks > once > 0


def test_copies_between_buffers_and_tensors_move_bytes_of_every_parameter_each_microbatch() -> None:
    plain, copied = (
        plan("llama2-7b", global_batch=384, framework=replace(FSDP, copied_bytes=moved)).predicted
        for moved in (0.0, 10.0)
    )
    more = copied.time["data-parallel communication"] - plain.time["data-parallel communication"]
    rate = float(machine(load_cluster("h100"), "bf16", gpus=64).hbm_bytes_per_s)
    assert more == pytest.approx(3 * 6_738_415_616 * 10 / rate, rel=1e-6)


def test_hidden_communication_slows_what_it_runs_beside() -> None:
    wire = plan("llama2-7b", micro=16, global_batch=1024).predicted.time["data-parallel communication"]
    half = replace(FSDP, reduced_bytes=2.0)
    less = plan("llama2-7b", micro=16, global_batch=1024, framework=half).predicted.time["data-parallel communication"]
    assert 0 < less < wire


def test_recompute_that_stops_early_leaves_the_last_product_out() -> None:
    model = load_model("llama2-7b")
    early = derived(model, FSDP.implementation, Scheme(False))["dense"]
    whole = derived(model, changed(FSDP.implementation, stops_early=False), Scheme(False))["dense"]
    full = frozenset({LAYER})
    assert recompute_policy(whole, full).rerun - recompute_policy(early, full).rerun == {"down_proj", "mlp_residual"}
    assert recompute_policy(whole, full).kept == recompute_policy(early, full).kept
    assert not recompute_policy(early, frozenset()).rerun


def test_recompute_by_operator_saves_attention_and_every_other_product() -> None:
    """torchtitan's policy: of seven products the second, fourth and sixth run again, and all that is element-wise."""
    block = derived(load_model("llama3.1-8b"), FSDP.implementation, Scheme(False))["dense"]
    policy = recompute_policy(block, frozenset({OPERATORS}))
    products = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj")
    assert [name for name in products if name in policy.rerun] == ["k_proj", "o_proj", "gate_proj"]
    assert "flash_attention" not in policy.rerun
    assert {"input_norm", "rope_q", "mlp_norm", "activation"} <= policy.rerun
    kept = {held.tensor for held, keep in zip(block.held, policy.kept, strict=True) if keep}
    assert {"layer_in", "q", "v", "attention_heads", "up"} <= kept
    assert not kept & {"input_norm", "q_rotated", "k", "gate", "mlp_hidden"}


def test_logits_that_are_given_up_leave_a_block_in_16_bits_and_no_wide_copy() -> None:
    held, given_up = (
        plan("llama2-7b", framework=replace(FSDP, implementation=changed(FSDP.implementation, held_logits=each)))
        for each in (True, False)
    )
    less = held.predicted.memory["head and loss"] - given_up.predicted.memory["head and loss"]
    assert less == pytest.approx(4 * 2 * 4096 * 32000)
