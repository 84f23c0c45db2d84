"""What Megatron's own modules keep for the backward, against hand counts."""

from __future__ import annotations

import importlib.machinery
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from symconfig.plan import Plan, Recompute
from symconfig.states.activations import saved
from symconfig.verify import megatron_saved, megatron_session
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import rendered, source

LAYERS, SEQUENCE, WIDTH, FFN, HEADS, TP = 4, 4096, 5120, 13824, 40, 4  # of the tests' llama2-13b
RECOMPUTES = {
    "none": Recompute("none"),
    "core_attn": Recompute("selective", ("core_attn",)),
    "layernorm": Recompute("selective", ("layernorm",)),
    "mlp": Recompute("selective", ("mlp",)),
    "all": Recompute("selective", ("core_attn", "layernorm", "mlp")),
    "uniform": Recompute("full", (), "uniform", 1),
    "pairs": Recompute("full", (), "uniform", 2),
    "block": Recompute("full", (), "block", 1),
}
EXPERT_RECOMPUTES = {
    "none": Recompute("none"),
    "mla_up_proj": Recompute("selective", ("mla_up_proj",)),
    "shared_experts": Recompute("selective", ("shared_experts",)),
    "moe": Recompute("selective", ("moe",)),
    "moe_act": Recompute("selective", ("moe_act",)),
}


def traces(plans: Mapping[str, Plan], rank: int = 0) -> dict[str, Mapping[str, Any]]:
    """What `trace` says of one rank of each plan."""
    found = source()
    jobs = []
    for name, plan in plans.items():
        item = rendered(plan)
        jobs.append(replace(megatron_session.job(name, plan, item.args, item.env, found), rank=rank, task="trace"))
    results = megatron_session.run(found, jobs, timeout_s=60)
    assert {name: result.error for name, result in results.items()} == dict.fromkeys(plans)
    return {name: result.rank for name, result in results.items()}


def dense(recompute: Recompute, **overrides: Any) -> Plan:
    model = sample_model("llama2-13b", num_hidden_layers=LAYERS)
    return sample_plan(model, **{"tp": TP, "pp": 1, "dp": 2, "recompute": recompute, **overrides})


def experts(recompute: Recompute) -> Plan:
    model = sample_model("deepseek-v3", num_hidden_layers=4, num_nextn_predict_layers=0)
    return sample_plan(model, tp=2, pp=1, ep=8, dp=8, recompute=recompute)


@pytest.fixture(scope="module")
def dense_traces() -> dict[str, Mapping[str, Any]]:
    return traces({name: dense(recompute) for name, recompute in RECOMPUTES.items()})


@pytest.fixture(scope="module")
def expert_traces() -> dict[str, Mapping[str, Any]]:
    return traces({name: experts(recompute) for name, recompute in EXPERT_RECOMPUTES.items()})


def held(trace: Mapping[str, Any], inside: str) -> int:
    """Bytes of the tensors that a module made, its submodules included."""
    return sum(record["bytes"] for record in trace["saved"]
               if not record["shared"] and (record["module"] + ".").startswith(inside + "."))


def test_symconfig_keeps_the_same_at_every_recompute(
    dense_traces: dict[str, Mapping[str, Any]], expert_traces: dict[str, Mapping[str, Any]]
) -> None:
    plans = [(dense(RECOMPUTES[name]), trace) for name, trace in dense_traces.items()]
    plans += [(experts(EXPERT_RECOMPUTES[name]), trace) for name, trace in expert_traces.items()]
    for plan, trace in plans:
        found = megatron_saved.groups(saved(plan, 0, "local"), trace["saved"])
        assert list(megatron_saved.problems(found)) == []


def test_a_gated_mlp_keeps_what_a_hand_count_says(dense_traces: dict[str, Mapping[str, Any]]) -> None:
    product = SEQUENCE * FFN // TP * 2
    assert held(dense_traces["none"], "decoder.layers.1.mlp") == 2 * product + product  # gate and up, their product
    assert held(dense_traces["mlp"], "decoder.layers.1.mlp") == 0


def test_the_local_core_keeps_its_probabilities_and_its_mask(dense_traces: dict[str, Mapping[str, Any]]) -> None:
    scores = HEADS // TP * SEQUENCE * SEQUENCE * 2
    output = SEQUENCE * WIDTH // TP * 2
    core = "decoder.layers.1.self_attention.core_attention"
    assert held(dense_traces["none"], core) == scores + SEQUENCE * SEQUENCE + output
    assert held(dense_traces["core_attn"], core) == output


def test_full_recompute_keeps_the_input_of_every_layer_or_group(dense_traces: dict[str, Mapping[str, Any]]) -> None:
    layer_input = SEQUENCE // TP * WIDTH * 2

    def inputs(name: str) -> int:
        return sum(1 for record in dense_traces[name]["saved"] if record["bytes"] == layer_input
                   and any("random.py" in reader for reader in record["needed_by"]))

    assert inputs("uniform") == LAYERS
    assert inputs("pairs") == LAYERS // 2
    assert inputs("block") == 1


def test_tables_of_positions_are_held_once(dense_traces: dict[str, Mapping[str, Any]]) -> None:
    """A checkpoint saves the rotary table, which Megatron makes once for all microbatches."""
    assert dense_traces["uniform"]["shared_bytes"] == SEQUENCE * 128 * 4
    assert dense_traces["none"]["shared_bytes"] == 0


def test_every_dense_recompute_keeps_less(dense_traces: dict[str, Mapping[str, Any]]) -> None:
    total = {name: trace["saved_bytes"] for name, trace in dense_traces.items()}
    assert total["pairs"] < total["uniform"] < total["block"] < total["none"]
    assert total["all"] < min(total["core_attn"], total["layernorm"], total["mlp"])
    assert max(total["core_attn"], total["layernorm"], total["mlp"]) < total["none"]


def test_every_recompute_of_experts_and_latent_attention(expert_traces: dict[str, Mapping[str, Any]]) -> None:
    total = {name: trace["saved_bytes"] for name, trace in expert_traces.items()}
    assert max(total["mla_up_proj"], total["shared_experts"], total["moe"]) < total["none"]
    assert total["moe_act"] == total["none"]  # SequentialMLP does not know that module
    assert held(expert_traces["moe"], "decoder.layers.3.mlp") == 0


def test_every_expert_gets_its_share(expert_traces: dict[str, Mapping[str, Any]]) -> None:
    rows = [record["shape"][0] for record in expert_traces["none"]["saved"]
            if record["module"].endswith("linear_fc1") and "local_experts" in record["module"]]
    tokens, chosen, experts, ranks = SEQUENCE // 2, 8, 256, 8  # of each of the ranks that exchange tokens
    assert rows == [tokens * chosen * ranks // experts] * (experts // ranks)


def test_the_stand_in_for_the_router_is_balanced() -> None:
    pytest.importorskip("torch")
    path = megatron_session.RUNNER.with_name("megatron_stand_ins.py")
    module: Any = types.ModuleType("megatron_stand_ins")
    importlib.machinery.SourceFileLoader("megatron_stand_ins", str(path)).exec_module(module)
    chosen = module.balanced(512, 64, 6)
    assert chosen.sum(dim=0).tolist() == [512 * 6 // 64] * 64
    assert chosen.sum(dim=1).tolist() == [6] * 512


def test_stages_and_chunks(dense_traces: dict[str, Mapping[str, Any]]) -> None:
    """Each virtual stage has a microbatch of its own; only the ends hold tokens and logits."""
    found = traces({"last": dense(Recompute("none"), pp=2, vpp=2)}, rank=TP * 2)["last"]
    assert {record["chunk"] for record in found["saved"]} == {0, 1}
    logits = SEQUENCE * 32256 // TP * 4  # 32000 tokens, padded to a multiple of 128 x tp
    assert any(record["bytes"] == logits and record["chunk"] == 1 for record in found["saved"])
    assert held(found, "decoder.layers.0.mlp") == 2 * held(dense_traces["none"], "decoder.layers.1.mlp")
