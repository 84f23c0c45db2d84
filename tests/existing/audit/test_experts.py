"""Experts by activation and biases: which of them Megatron-LM runs, and that a better plan of each can be written."""

from __future__ import annotations

import pytest

from symconfig.api import existing
from symconfig.existing.audit.audit import Audit
from symconfig.render import render

START = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 2048 --num-attention-heads 16 "
    "--ffn-hidden-size 4096 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
    "--global-batch-size 32 --vocab-size 32000 --bf16 --use-distributed-optimizer --num-experts 8 --moe-router-topk 2 "
    "--expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall"
)
GROUPED, UNBIASED = "--moe-grouped-gemm --no-bias-dropout-fusion", "--disable-bias-linear"
CLAMPED = "--quick-geglu --glu-linear-offset 1 --activation-func-clamp-value 7"
UNFUSED = "--no-bias-gelu-fusion"


def audited(words: str, *, version: str | None = None, plan: bool = False) -> Audit:
    return existing.audit(f"{START} {words}", "h100", plan=plan, megatron_version=version)


@pytest.mark.parametrize("grouped", ["", GROUPED])
@pytest.mark.parametrize(
    ("words", "version", "runs"),
    [
        ("", "core_v0.19.0", False),
        ("", "core_v0.15.0", False),
        (UNFUSED, "core_v0.19.0", True),
        (UNFUSED, "core_v0.15.0", True),
        (UNBIASED, "core_v0.19.0", True),
        (UNBIASED, "core_v0.14.0", True),
        ("--swiglu", "core_v0.19.0", True),
        (CLAMPED, "core_v0.19.0", True),
        (UNFUSED, "core_v0.14.0", False),
        ("--swiglu", "core_v0.13.0", False),
    ],
)
def test_biases_of_experts_are_refused_where_megatron_raises(
    grouped: str, words: str, version: str, runs: bool
) -> None:
    """core/transformer/mlp.py and moe/experts.py of each release, which weight what an expert makes of a token."""
    found = audited(f"{grouped} {words}", version=version)
    assert ("biases-of-experts" not in {finding.rule for finding in found.findings}) is runs
    assert found.runs is runs


def test_single_experts_have_fused_gelu_as_long_as_they_do_not_weight_it() -> None:
    found = audited("", version="core_v0.12.1")
    assert found.runs
    assert found.judged is not None
    assert found.judged.run.described.model.hidden_act == "gelu_tanh"


@pytest.mark.parametrize(
    "words",
    [
        UNBIASED,
        f"{UNBIASED} {UNFUSED}",
        UNFUSED,
        "",
        f"{UNBIASED} --swiglu",
        f"{UNBIASED} --squared-relu",
        f"{UNBIASED} --quick-geglu",
        f"{UNBIASED} {CLAMPED}",
    ],
)
def test_a_better_plan_of_experts_can_be_written(words: str) -> None:
    """Also of those that cannot run as they are, whose plan names what they need."""
    found = audited(f"{words} --moe-grouped-gemm", plan=True)
    assert found.better is not None, found.infeasible
    written = " ".join(item.text for item in render(found.better, "megatron"))
    assert "--num-experts" in written
    assert (UNFUSED in written) is (UNBIASED not in words)


@pytest.mark.parametrize(("limit", "runs"), [(-3, False), (0, True), (4, True)])
def test_a_deferral_limit_below_zero_is_refused(limit: int, runs: bool) -> None:
    words = f"{UNBIASED} --pipeline-model-parallel-size 2 --defer-embedding-wgrad-compute --wgrad-deferral-limit"
    found = audited(f"{words} {limit}")
    assert found.runs is runs
    assert ("defer-embedding-wgrad-compute-refused" in {finding.rule for finding in found.findings}) is not runs
