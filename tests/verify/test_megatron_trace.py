"""What Megatron's own modules keep for the backward, against hand counts, and beside what symconfig keeps."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.report.verify import checked as blocks
from symconfig.verify import checks, megatron, megatron_rank, megatron_session
from symconfig.verify.checks import Check, Compared, Options
from symconfig.verify.megatron_session import Job, Result
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import LIMIT_S, rendered, source

pytestmark = pytest.mark.usefixtures("warm_megatron")

LAYERS, SEQUENCE, WIDTH, FFN, HEADS, TP = 4, 4096, 5120, 13824, 40, 4  # of the tests' llama2-13b
RECOMPUTES = {
    "none": {"recompute": "none"},
    "core_attn": {"recompute": "selective", "recompute_modules": ("core_attn",)},
    "layernorm": {"recompute": "selective", "recompute_modules": ("layernorm",)},
    "mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
    "all": {"recompute": "selective", "recompute_modules": ("core_attn", "layernorm", "mlp")},
    "uniform": {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
    "pairs": {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    "block": {"recompute": "full", "recompute_method": "block", "recompute_layers": 1},
}
EXPERT_RECOMPUTES = {
    "none": {"recompute": "none"},
    "mla_up_proj": {"recompute": "selective", "recompute_modules": ("mla_up_proj",)},
    "shared_experts": {"recompute": "selective", "recompute_modules": ("shared_experts",)},
    "moe": {"recompute": "selective", "recompute_modules": ("moe",)},
    "moe_act": {"recompute": "selective", "recompute_modules": ("moe_act",)},
}


def dense(recompute: dict[str, Any], kv_heads: int = HEADS, qk_norm: bool = False, **overrides: Any) -> Plan:
    model = sample_model("llama2-13b", num_hidden_layers=LAYERS, num_key_value_heads=kv_heads, qk_norm=qk_norm)
    return sample_plan(model, **{"tp": TP, "pp": 1, "dp": 2, **recompute, **overrides})


def experts(recompute: dict[str, Any]) -> Plan:
    model = sample_model("deepseek-v3", num_hidden_layers=4, num_nextn_predict_layers=0)
    return sample_plan(model, tp=2, pp=1, ep=8, dp=8, **recompute)


PLANS: dict[str, Plan] = {
    **{name: dense(recompute) for name, recompute in RECOMPUTES.items()},
    **{f"experts {name}": experts(recompute) for name, recompute in EXPERT_RECOMPUTES.items()},
    "a shared head": dense({"recompute": "none"}, kv_heads=1),
    "shared and normed heads": dense({"recompute": "none"}, kv_heads=TP // 2, qk_norm=True),
    "last": dense({"recompute": "none"}, pp=2, vpp=2),
    "grouped": dense({"recompute": "none"}, kv_heads=2 * TP),
    "shared heads": dense({"recompute": "none"}, kv_heads=TP // 2),
    "shared heads, core_attn": dense({"recompute": "selective", "recompute_modules": ("core_attn",)}, kv_heads=TP // 2),
}
RANKS = {"last": TP * 2}


@pytest.fixture(scope="module")
def traces() -> dict[str, Mapping[str, Any]]:
    """What `trace` says of one rank of each plan."""
    found = source()
    jobs = []
    for name, plan in PLANS.items():
        item = rendered(plan)
        job = megatron_session.job(name, plan, item.args, item.env, found)
        jobs.append(replace(job, rank=RANKS.get(name, 0), task="trace"))
    results = megatron_session.run(found, jobs, LIMIT_S)
    assert {name: result.error for name, result in results.items()} == dict.fromkeys(PLANS)
    return {name: result.rank for name, result in results.items()}


@pytest.mark.parametrize("name", PLANS)
def test_symconfig_keeps_the_same(name: str, traces: dict[str, Mapping[str, Any]]) -> None:
    stage = PLANS[name].best.configuration.pp - 1
    ours = megatron_rank.saved_bytes(PLANS[name], stage)
    assert ours == pytest.approx(traces[name]["saved_bytes"], rel=0.02 if name == "shared and normed heads" else 0.002)


def test_parts_keep_what_a_hand_count_says(traces: dict[str, Mapping[str, Any]]) -> None:
    """What a recompute of a part saves: all that the part keeps, but its input and its output."""
    total = {name: trace["saved_bytes"] / LAYERS for name, trace in traces.items()}
    product, scores = SEQUENCE * FFN // TP * 2, HEADS // TP * SEQUENCE * SEQUENCE * 2
    assert total["none"] - total["mlp"] == 3 * product  # gate and up, and their product
    assert total["none"] - total["core_attn"] == scores + SEQUENCE * SEQUENCE  # probabilities, the mask of dropout
    assert total["uniform"] - total["pairs"] == SEQUENCE // TP * WIDTH * 2 / 2  # the input of every other layer


def test_every_dense_recompute_keeps_less(traces: dict[str, Mapping[str, Any]]) -> None:
    total = {name: trace["saved_bytes"] for name, trace in traces.items()}
    assert total["pairs"] < total["uniform"] < total["block"] < total["none"]
    assert total["all"] < min(total["core_attn"], total["layernorm"], total["mlp"])
    assert max(total["core_attn"], total["layernorm"], total["mlp"]) < total["none"]


def test_every_recompute_of_experts_and_latent_attention(traces: dict[str, Mapping[str, Any]]) -> None:
    total = {name: traces[f"experts {name}"]["saved_bytes"] for name in EXPERT_RECOMPUTES}
    assert max(total["mla_up_proj"], total["shared_experts"], total["moe"]) < total["none"]
    assert total["moe_act"] == total["none"]  # SequentialMLP does not know that module


def test_the_stand_in_for_the_router_is_balanced() -> None:
    pytest.importorskip("torch")
    chosen = importlib.import_module("symconfig.verify.runners.megatron_patches").balanced(512, 64, 6)
    assert chosen.sum(dim=0).tolist() == [512 * 6 // 64] * 64
    assert chosen.sum(dim=1).tolist() == [6] * 512


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_low_precision_cannot_be_compared(precision: str) -> None:
    plan = sample_plan("llama2-13b", "h100", precision=precision)
    assert megatron_rank.trace_jobs(Job("", (), 64), plan) == []
    (check,) = megatron_rank.trace_checks(plan, [], {}, "Megatron", "args")
    assert (check.status, check.detail) == ("skipped", f"Megatron's own layers have no {precision}")


def test_a_dispatcher_without_a_stand_in_is_not_traced() -> None:
    plan = sample_plan("mixtral-8x7b", moe_dispatcher="flex")
    (check,) = megatron_rank.trace_checks(plan, [], {}, "Megatron", "args")
    assert check.status == "skipped"
    assert check.detail.endswith("for alltoall only, not for flex")


def test_a_crash_of_the_trace_is_a_failed_check() -> None:
    plan = sample_plan()
    (job, *_) = megatron_rank.trace_jobs(Job("", (), 64), plan)
    (check,) = megatron_rank.trace_checks(
        plan, [job], {job.id: Result(job.id, crash="ended with status 9")}, "it", "args"
    )
    assert check.status == "failed"
    assert "ended with status 9" in check.detail


@pytest.fixture(scope="module")
def traced() -> dict[str, list[Check]]:
    """Rendered arguments, their ranks traced and compared: a plan with virtual stages and block recompute, and one
    that recomputes what its arguments do not."""
    model = sample_model("llama2-13b", num_hidden_layers=8)
    whole = rendered(
        sample_plan(model, tp=2, pp=2, vpp=2, dp=2, recompute="full", recompute_method="block", recompute_layers=1)
    )
    item = rendered(sample_plan(model, tp=2, pp=1, dp=2))
    options = replace(item.plan.best.configuration, recompute="selective", recompute_modules=("core_attn",))
    wrong = replace(item, plan=replace(item.plan, best=replace(item.plan.best, configuration=options)))
    found = megatron.check_many({"whole": whole, "wrong": wrong}, source(), trace=True)
    return {name: [check for check in some if "backward" in check.name] for name, some in found.items()}


def test_the_whole_way(traced: dict[str, list[Check]]) -> None:
    assert [check.status for check in traced["whole"]] == ["passed"] * 2
    assert all(abs(row.difference) < 0.002 for check in traced["whole"] for row in check.compared)


def test_a_plan_that_recomputes_what_the_arguments_do_not_fails(traced: dict[str, list[Check]]) -> None:
    assert traced["wrong"][0].status == "failed"
    assert "MiB of one microbatch of every chunk, symconfig has" in traced["wrong"][0].detail


def test_the_table_tells_bytes_apart_from_counts() -> None:
    check = Check(
        "it",
        "passed",
        "",
        0.0,
        (
            Compared("x", 101, 100, "bytes"),
            Compared("y", 3, 2, "count"),
            Compared("z", 1, 1, "bytes"),
            Compared("new", 1, 0, "bytes"),
        ),
    )
    grid: Any = blocks(Path("DIR"), [check])[1]
    assert [row[-1] for row in grid.rows] == ["+1 (+1.00 %)", "+1", "0", "+1"]


def test_tracing_implies_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    class Framework:
        def applies(self, plan: Any) -> bool:
            return True

        def checks(self, folder: Path, plan: Any, options: Options) -> list[Check]:
            asked.append(options)
            return []

    monkeypatch.setattr(checks, "frameworks", lambda: {"it": Framework()})
    write(render(sample_plan(), "megatron"), tmp_path / "out")
    checks.verify(tmp_path / "out", trace=True)
    assert [(options.build, options.trace) for options in asked] == [(True, True)]


def test_modules_of_deepspeed_are_not_traced(tmp_path: Path) -> None:
    write(render(sample_plan("qwen2.5-7b", "h100", backend="deepspeed"), "deepspeed"), tmp_path / "out")
    with pytest.raises(InputError, match="--trace: runs the modules of Megatron-LM only"):
        checks.verify(tmp_path / "out", trace=True)
