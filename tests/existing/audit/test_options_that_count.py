"""Options that change memory or time change the prediction, each as Megatron-LM has it."""

from __future__ import annotations

import pytest

from symconfig.api import existing
from symconfig.cost.framework import Framework
from symconfig.existing.audit.audit import Audit
from symconfig.frameworks.megatron.options import graphed
from tests.existing.audit.corpus_cases import CORPUS
from tests.existing.audit.support import OVERLAPS, SEVENTY, audited
from tests.existing.recover.options import names_of

INTERLEAVED = f"{SEVENTY} {OVERLAPS} --num-virtual-stages-per-pipeline-rank 5"
TRANSFORMER_ENGINE = "--num-experts 8 --cuda-graph-impl transformer_engine"
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"


def run(line: str) -> Audit:
    return audited(line, 64, plan=False)


def framework(line: str) -> Framework:
    judged = run(line).judged
    return judged.run.configuration.framework


def memory_and_time(line: str) -> tuple[float, float]:
    judged = run(line).judged
    return judged.plan.best.predicted.peak_bytes, judged.plan.best.predicted.step_s


def test_larger_groups_of_microbatches_keep_more_activations() -> None:
    usual, wide = memory_and_time(INTERLEAVED), memory_and_time(f"{INTERLEAVED} {GROUP} 16")
    assert memory_and_time(f"{INTERLEAVED} {GROUP} 4") == usual  # as many as stages: the default
    assert framework(f"{INTERLEAVED} {GROUP} 4").microbatch_group == 0
    # schedules.py: (chunks - 1) x group + 2 (pp - 1) + 1 passes wait on the first stage; of 4 layers, and a pass keeps
    # each layer's input, [8192 / tp 8, 8192] in bf16.
    assert wide[0] - usual[0] == pytest.approx(4 * 12 * 4 * 1024 * 8192 * 2, rel=0.1)


def test_main_gradients_in_bf16_take_half_of_the_memory() -> None:
    narrow = "--use-precision-aware-optimizer --main-grads-dtype bf16"
    assert framework(f"{SEVENTY} {narrow}").bytes.gradient == 2
    assert framework(f"{SEVENTY} --use-precision-aware-optimizer").bytes.gradient == 4
    assert framework(f"{SEVENTY} {narrow} --accumulate-allreduce-grads-in-fp32").bytes.gradient == 4
    assert memory_and_time(f"{SEVENTY} {narrow}")[0] < memory_and_time(SEVENTY)[0] - 4e9


@pytest.mark.parametrize(
    ("line", "version", "which"),
    [
        ("--num-experts 8", "core_v0.19.0", None),
        ("--cuda-graph-impl none", "core_v0.19.0", None),
        ("--cuda-graph-impl local", "core_v0.19.0", "all"),
        ("--cuda-graph-impl full_iteration", "core_v0.19.0", "full iteration"),
        ("--cuda-graph-impl local --cuda-graph-modules attn mlp", "core_v0.19.0", "all"),
        ("--cuda-graph-impl local --cuda-graph-modules attn", "core_v0.19.0", None),
        (f"{TRANSFORMER_ENGINE} --cuda-graph-scope attn moe_router", "core_v0.17.1", "outside experts"),
        (f"{TRANSFORMER_ENGINE} --cuda-graph-modules moe_router", "core_v0.19.0", "router"),
        ("--num-experts 8 --cuda-graph-impl local --cuda-graph-modules attn,moe", "core_v0.19.0", "all"),
        ("--enable-cuda-graph", "core_v0.11.0", "all"),
        ("--external-cuda-graph", "core_v0.14.0", "all"),
        ("--external-cuda-graph --cuda-graph-scope attn", "core_v0.14.0", None),
    ],
)
def test_what_cuda_graphs_replay(line: str, version: str, which: str | None) -> None:
    assert graphed(names_of(line, version), "--num-experts" in line) == which


@pytest.mark.parametrize(
    "option",
    ["--freeze-all-layers", "--use-checkpoint-args", "--hybrid-context-parallel",
     "--tensor-parallel-num-weight-shards 2", "--step-batch-size-schedule 8:100"],
)  # fmt: skip
def test_what_would_be_another_run_is_not_predicted(option: str) -> None:
    found = run(f"{SEVENTY} {option}")
    assert found.judged is None
    assert [problem.field for problem in found.unpredicted] == [option.split()[0]]


EXPERTS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 0.01 --seq-length 2048 "
    "--max-position-embeddings 32768 --position-embedding-type rope --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --bf16 "
    "--pipeline-model-parallel-size 4 --expert-model-parallel-size 4 --use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather --micro-batch-size 1 --global-batch-size 128 --tokenizer-type NullTokenizer "
    "--vocab-size 32000 --rotary-base 1000000 --mock-data --lr 1e-4 --train-iters 500"
)


def _seconds(line: str) -> tuple[float, float]:
    judged = audited(f"{EXPERTS} {line}", 16, "mixtral-8x7b", plan=False).judged
    predicted = judged.plan.best.predicted
    return predicted.step_s, predicted.time["layer communication"]


def test_how_tokens_come_to_experts_and_who_multiplies_them_costs() -> None:
    grouped, alltoall = "--moe-grouped-gemm", "--moe-token-dispatcher-type alltoall"
    usual = _seconds(f"{grouped} {alltoall}")
    gathered = _seconds(f"{grouped} --moe-token-dispatcher-type allgather")
    assert gathered[1] > 1.5 * usual[1]  # each rank's tokens go to 3 others, instead of two slots to 3 of 4
    assert _seconds(alltoall)[0] > usual[0]  # experts one after the other, whose results are joined


LINE = (CORPUS / "megatron" / "arguments.txt").read_text().replace("--recompute-activations", "").strip()


def step_and_peak(how: str) -> tuple[float, float]:
    judged = existing.audit(f"{LINE} --recompute-granularity full {how}", "h100", 16, plan=False).judged
    return judged.plan.best.predicted.step_s, judged.plan.best.predicted.peak_bytes


@pytest.mark.parametrize("layers", [20, 22, 1000])
def test_a_block_of_all_layers_is_full_recompute(layers: int) -> None:
    """More than a stage has: all of them are recomputed, as Megatron-LM does (transformer_block.py)."""
    whole = step_and_peak("--recompute-method uniform --recompute-num-layers 1")
    assert step_and_peak(f"--recompute-method block --recompute-num-layers {layers}") == pytest.approx(whole, rel=1e-3)
    part = step_and_peak("--recompute-method block --recompute-num-layers 10")
    assert part[0] < whole[0]
    assert part[1] > whole[1]
