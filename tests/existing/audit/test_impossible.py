"""What no run has is not predicted; what Megatron-LM refuses and costs can still be told of is said to be as if."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model
from symconfig.existing.audit.audit import Audit
from tests.existing.audit.support import OVERLAPS, SEVENTY, audited

EXPERTS = (
    "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16 --tensor-model-parallel-size 2 "
    f"--expert-tensor-parallel-size 1 {OVERLAPS} --use-distributed-optimizer --moe-grouped-gemm"
)


def run(line: str) -> Audit:
    return audited(line, 64, plan=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tensor-model-parallel-size", "0"),
        ("--context-parallel-size", "-1"),
        ("--global-batch-size", "0"),
        ("--micro-batch-size", "0"),
        ("--seq-length", "-5"),
        ("--recompute-num-layers", "0"),
        ("--kv-channels", "0"),
        ("--num-layers-per-virtual-pipeline-stage", "0"),
        ("--decoder-first-pipeline-num-layers", "0"),
        ("--optimizer-offload-fraction", "nan"),
        ("--optimizer-offload-fraction", "7"),
        ("--optimizer-offload-fraction", "-1"),
    ],
)
def test_a_number_that_no_run_has_is_not_predicted(option: str, value: str) -> None:
    found = run(f"{SEVENTY} --optimizer-cpu-offload --use-precision-aware-optimizer {option} {value}")
    assert found.judged is None
    assert option in {problem.field for problem in found.unpredicted}


@pytest.mark.parametrize(
    ("options", "predicted"),
    [
        ("--expert-model-parallel-size 8", True),
        ("--expert-model-parallel-size 0", False),
        ("--expert-model-parallel-size 3", False),  # of 8 experts
        ("--expert-model-parallel-size 8 --pipeline-model-parallel-size 8", False),  # 4 GPUs each
    ],
)
def test_experts_that_do_not_divide_are_not_predicted(options: str, predicted: bool) -> None:
    found = audited(f"{EXPERTS} {options}", 32, "mixtral-8x7b", plan=False)
    assert (found.judged is not None) == predicted


def test_what_does_not_divide_is_said_of_this_run_with_its_numbers() -> None:
    found = run(f"{SEVENTY} --context-parallel-size 2 --cp-comm-type a2a")
    assert found.judged is None
    said = [str(problem) for problem in found.unpredicted]
    assert any("heads do not divide over tp " in each and "cp 2" in each for each in said), said
    assert not any("is not divided like this" in each for each in said)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--decoder-first-pipeline-num-layers 79", "layers of the stages"),
        ("--decoder-first-pipeline-num-layers 19 --decoder-last-pipeline-num-layers 20", "layers of the stages"),
        ("--account-for-loss-in-pipeline-split", "layers of the stages"),
        ("--fp16", "precision"),
        ("--decoder-first-pipeline-num-layers 17", None),
    ],
)
def test_what_megatron_refuses_is_predicted_as_if(options: str, what: str | None) -> None:
    judged = run(f"{SEVENTY} {options}").judged
    assert judged is not None
    assert [item.what for item in judged.run.assumed] == ([what] if what is not None else [])
    layers = sum(chunk.count("dense") for stage in judged.plan.best.stages for chunk in stage.chunks)
    assert layers == load_model("llama3.1-70b").num_hidden_layers
    assert judged.plan.best.options.grad_bytes == 4
