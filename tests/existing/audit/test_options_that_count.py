"""Options that change memory or time count, what cannot be read sets nothing, and what no run has is not predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from symconfig.api import existing
from symconfig.api import existing as api
from symconfig.api.existing import audit
from symconfig.cost.framework import Framework
from symconfig.descriptor.load import load_model
from symconfig.existing.audit.audit import Audit
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Hides, Reading
from symconfig.frameworks.megatron.options import graphed
from tests.existing.audit.support import OVERLAPS, SEVENTY, audited
from tests.existing.audit.test_corpus import CORPUS
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


def test_shards_of_experts_that_a_dense_model_has_not_change_nothing() -> None:
    found = run(f"{SEVENTY} --expert-tensor-parallel-num-weight-shards 8")
    assert found.judged is not None
    assert not found.unpredicted


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


MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000 --bf16 "
    "--use-distributed-optimizer"
)
OF_LLAMA = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --global-batch-size 64 "


def script(folder: Path, text: str) -> Path:
    path = folder / "launch.sh"
    path.write_text(text)
    return path


def values(reading: Reading) -> dict[str, str | None]:
    """Each option's first value; None: not known."""
    return {
        setting.name: None if setting.values[0].unknown else setting.values[0].text
        for setting in reading.settings
        if setting.values
    }


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("TP=4\n. gone.sh\npython train.py --tp $TP --pp $PP", {"--tp": "4", "--pp": None}),
        (". gone.sh\npython train.py --tp ${TP:-4} --pp ${PP:=2}", {"--tp": "4", "--pp": "2"}),
        ("if [ -f gone.sh ]; then . gone.sh; else TP=4; fi\npython train.py --tp $TP", {"--tp": None}),
        ("TP=4\neval $(python make.py)\npython train.py --tp $TP", {"--tp": "4"}),
        ("A+=(--x 1)\n. gone.sh\npython train.py ${A[@]} --y 1", {"--x": "1", "--y": "1"}),
        ('. gone.sh\npython train.py "$(cat words.txt)" --y 1', {"--y": "1"}),
    ],
)
def test_what_a_file_may_set_is_as_the_script_says(tmp_path: Path, text: str, known: Mapping[str, str | None]) -> None:
    found = read(str(script(tmp_path, text)))
    assert values(found) == known
    assert found.complete
    assert {item.hides for item in found.assumptions} == {Hides.VARIABLES}
    assert not found.environment_known


@pytest.mark.parametrize(
    ("condition", "possible"),
    [
        ('if [ "$X" = 1 ]; then A+=(--x 1 --y); fi', ["--x", "--y"]),
        ('[ "$X" = 1 ] && A+=(--x 1) || A+=(--z 2)', ["--x", "--z"]),
        ('if [ "$X" = 1 ]; then A+=(--tp 2); else A+=(--tp 4); fi', ["--tp"]),
        ('case "$X" in a) A+=(--x 1);; b) A+=(--y);; esac', ["--x", "--y"]),
    ],
)
def test_options_under_unknown_conditions_are_known_by_name(
    tmp_path: Path, condition: str, possible: list[str]
) -> None:
    found = read(str(script(tmp_path, f'A=(--a 1)\n{condition}\npython train.py "${{A[@]}}" --b 2')))
    assert found.complete
    assert values(found) == {"--a": "1", "--b": "2"}
    assert [setting.name for setting in found.possible] == possible


def test_a_variable_that_an_unread_file_may_export_is_not_missed(tmp_path: Path) -> None:
    line = OF_LLAMA + "--micro-batch-size 1 --tensor-model-parallel-size 2 --sequence-parallel"
    rules = [
        {finding.rule for finding in audit(script(tmp_path, text + line), "h100", plan=False).findings}
        for text in ("", ". gone.sh\n")
    ]
    assert {"environment-advised", "environment-missing"} <= rules[0]
    assert not {rule for rule in rules[1] if rule.startswith("environment")}


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


PLAIN = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --position-embedding-type rope --swiglu --disable-bias-linear --bf16 "
    "--vocab-size 32000 --micro-batch-size 1"
)
TORCHRUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN} --global-batch-size 64 "
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
