"""What no run has is not predicted; what Megatron-LM refuses and costs can still be told of is said to be as if."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from symconfig.api import existing as api
from symconfig.descriptor.load import load_model
from symconfig.existing.audit.audit import Audit
from tests.existing.audit.support import SEVENTY, audited


def run(line: str) -> Audit:
    return audited(line, 64, plan=False)


@pytest.mark.parametrize(
    "option",
    ["--tensor-model-parallel-size 0", "--context-parallel-size -1", "--global-batch-size 0", "--micro-batch-size 0",
     "--seq-length -5", "--recompute-num-layers 0", "--kv-channels 0", "--num-layers-per-virtual-pipeline-stage 0",
     "--decoder-first-pipeline-num-layers 0", "--optimizer-offload-fraction nan", "--optimizer-offload-fraction 7",
     "--optimizer-offload-fraction -1"],
)  # fmt: skip
def test_a_number_that_no_run_has_is_not_predicted(option: str) -> None:
    found = run(f"{SEVENTY} --optimizer-cpu-offload --use-precision-aware-optimizer {option}")
    assert found.judged is None
    assert option.split()[0] in {problem.field for problem in found.unpredicted}


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
    assert [item.what for item in judged.run.assumed] == ([what] if what is not None else [])
    layers = sum(chunk.count("dense") for stage in judged.plan.best.stages for chunk in stage.chunks)
    assert layers == load_model("llama3.1-70b").num_hidden_layers
    assert judged.plan.best.configuration.grad_bytes == 4


MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --position-embedding-type rope --swiglu --disable-bias-linear --bf16 "
    "--vocab-size 32000 --micro-batch-size 1"
)
TORCHRUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --global-batch-size 64 "
TRAINER = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --max_seq_length 2048 "
    "--bf16 True --deepspeed ds.json "
)
RECIPE = (
    "torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config train.micro_batch_size=1 "
    "train.global_batch_size=64 "
)
JSON = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, %s}'
MICRO = '"train_micro_batch_size_per_gpu": 1'

GRIDS = {
    "tp": (TORCHRUN + "--tensor-model-parallel-size 16", r"got 8, need a multiple of tp x pp x cp = 16"),
    "pp": (TORCHRUN + "--pipeline-model-parallel-size 3", r"got 8, need a multiple of tp x pp x cp = 3"),
    "cp": (TORCHRUN + "--context-parallel-size 16", r"got 8, need a multiple of tp x pp x cp = 16"),
    "batch": (TORCHRUN + "--global-batch-size 63", r"dp 8 x micro-batch 1 does not divide the batch of 63"),
    "heads": (TORCHRUN + "--tensor-model-parallel-size 8 --num-attention-heads 36",
              r"36 attention heads cannot be split over tp 8"),
    "options unknown": (TORCHRUN + "$EXTRA_ARGS --tensor-model-parallel-size 16", r"got 8, need a multiple of tp = 16"),
    "file unread": (f". gone.sh\n{TORCHRUN}--pipeline-model-parallel-size $PP --tensor-model-parallel-size 16",
                    r"got 8, need a multiple of tp x cp = 16"),
    "recipe": (RECIPE + "model.tensor_model_parallel_size=16", r"got 8, need a multiple of tp = 16"),
}  # fmt: skip
JSONS = {
    "AutoTP": (f'{MICRO}, "tensor_parallel": {{"autotp_size": 16}}', "8 GPUs do not divide by 16"),
    "Ulysses": (f'{MICRO}, "sequence_parallel_size": 3', "8 GPUs do not divide by 3"),
    "batch": (f'{MICRO}, "train_batch_size": 63', "63 does not divide by micro-batch 1 x 8 ranks"),
    "all sizes": (
        f'{MICRO}, "train_batch_size": 64, "gradient_accumulation_steps": 3',
        "64 is not micro-batch 1 x accumulation 3 x 8 ranks",
    ),
}


def written(folder: Path, command: str, config: str = MICRO) -> Path:
    (folder / "ds.json").write_text(JSON % config)
    path = folder / "run.sh"
    path.write_text(command + "\n")
    return path


def errors(done: Audit) -> str:
    return "\n".join(str(finding.problem) for finding in done.findings if finding.severity == "error")


@pytest.mark.parametrize("cluster", [None, "h100"])
@pytest.mark.parametrize("gpus", [None, 8])
@pytest.mark.parametrize(("command", "numbers"), GRIDS.values(), ids=GRIDS)
def test_a_grid_that_does_not_divide_is_an_error_with_its_numbers(
    tmp_path: Path, command: str, numbers: str, gpus: int | None, cluster: str | None
) -> None:
    done = api.audit(written(tmp_path, command), cluster, gpus, plan=False)
    assert not done.runs
    assert re.search(numbers, errors(done)), errors(done)


@pytest.mark.parametrize("cluster", [None, "h100"])
@pytest.mark.parametrize("model", [None, "llama2-7b"])
@pytest.mark.parametrize(("config", "numbers"), JSONS.values(), ids=JSONS)
def test_a_json_that_does_not_divide_is_an_error_alone_and_with_a_trainer(
    tmp_path: Path, config: str, numbers: str, model: str | None, cluster: str | None
) -> None:
    path = written(tmp_path, TRAINER, config)
    for source in (path, path.with_name("ds.json")):
        done = api.audit(source, cluster, 8, model=model, plan=False)
        assert not done.runs
        assert numbers in errors(done)
