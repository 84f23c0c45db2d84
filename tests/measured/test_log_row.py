"""A training log as a measured row: what is read back of a run, and `symconfig calibrate` on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.measurements import Row
from symconfig.errors import InputError
from symconfig.existing.recover.zoo import meaning
from symconfig.format import picked
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.measured.judge import Judged, judge_case
from symconfig.measured.log_row import Additions, read_back, run_of
from symconfig.measured.training_log import TrainingLog, read_log
from symconfig.plans.configuration import FIELDS as NAMES_OF_CONFIGURATION
from symconfig.plans.plan import Plan
from symconfig.schedule.timeline import Start
from symconfig.solve.predict import predict
from symconfig.solve.prospect import Setup
from symconfig.units import GIB, MIB
from tests.cli.support import Run
from tests.measured.log_samples import deepspeed_log, iteration, megatron_log, memory, plan_log, throughput, write
from tests.sample_plans import sample_plan

MODELS = ("llama2-13b", "mixtral-8x7b", "deepseek-v3")
OPTIONS: tuple[dict[str, object], ...] = (
    {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
    {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
    {"recompute": "selective", "recompute_modules": ("core_attn", "mlp")},
    {"sequence_parallel": False},
    {"zero_stage": 0},
    {"cp": 2, "dp": 4, "cp_comm": "a2a"},
    {"precision": "fp8"},
    {"precision": "mxfp8", "version": "core_v0.14.0"},
    {"micro": 2},
    {"pp": 4, "dp": 4, "vpp": 2},
    {"pp": 4, "dp": 4, "first_stage_layers": 12, "last_stage_layers": 8},
    {"pp": 4, "dp": 4, "last_stage_layers": 7},
)


def item_of(log: TrainingLog, cluster: ClusterDescriptor, **additions: Any) -> Judged:
    """The run of a log, as calibrate has it."""
    return judge_case(*read_back(log, cluster, Additions(**additions)))


def row_of(log: TrainingLog, cluster: ClusterDescriptor, **additions: Any) -> Row:
    return read_back(log, cluster, Additions(**additions))[0]


def configuration(plan: Plan) -> Setup:
    """What `predict` is to be asked for a plan."""
    o = plan.best.configuration
    gathers = o.overlap_param_gather and o.zero_stage > 0
    framework = replace(MEGATRON, gathers=Start.ON_DEMAND if gathers and o.pp > 1 and o.vpp == 1 else Start.AHEAD)
    return stated(
        Setup.of(
            plan.best, framework, sequence_parallel=o.sequence_parallel and o.tp > 1, version=plan.best.target.version
        )
    )


def stated(c: Setup) -> Setup:
    """Return the configuration without what a row states of its framework's behaviour alone."""
    unsaid = [name for name in NAMES_OF_CONFIGURATION if name.startswith(("overlap_", "moe_", "microbatch"))]
    return replace(c, **picked(Setup(micro=1, global_batch=1, seq_length=1), *unsaid))


def test_a_models_own_plan_is_read_back(tmp_path: Path) -> None:
    for name in MODELS:
        plan = sample_plan(name)
        log = read_log(write(tmp_path, plan_log(plan)))
        item = item_of(log, plan.cluster)
        wanted = configuration(plan)
        assert stated(item.case.configuration) == wanted, name
        assert not item.case.assumed, name
        assert item.time[1] == 1.0


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_a_plan_are_read_back(tmp_path: Path, options: dict[str, object]) -> None:
    plan = sample_plan("llama2-13b", load_cluster("b200"), **options)  # type: ignore[arg-type]
    log = read_log(write(tmp_path, plan_log(plan)))
    found = item_of(log, plan.cluster).case.configuration
    wanted = configuration(plan)
    assert stated(found) == wanted


def test_a_named_model_and_a_cluster_of_ones_own(tmp_path: Path) -> None:
    plan = sample_plan("gpt-oss-120b", "h100")
    log = read_log(write(tmp_path, plan_log(plan)))
    cluster = plan.cluster.model_copy(update={"name": "our machine"})
    assert meaning(item_of(log, cluster).case.model) == meaning(plan.model)
    item = item_of(log, cluster, model=plan.model)
    assert meaning(item.case.model) == meaning(plan.model)
    assert item.case.cluster.name == "our machine"


def test_memory_and_out_of_memory_reach_the_row(tmp_path: Path) -> None:
    a100 = load_cluster("a100-80gb")
    row = row_of(read_log(write(tmp_path, megatron_log())), a100)
    assert row.measured.peak_allocated_gib == pytest.approx(40_001 * MIB / GIB)
    assert row.measured.memory_rank == "max"
    assert row.measured.oom is None
    died = write(tmp_path, megatron_log(1) + "torch.OutOfMemoryError: CUDA out of memory.\n")
    row = row_of(read_log(died), a100)
    assert row.measured.oom
    assert row.measured.step_s is None


def test_memory_of_the_first_rank_alone_is_that_of_the_first_stage(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", load_cluster("a100-80gb"), pp=4, dp=4)
    text = plan_log(plan) + memory(0, 20_000.0)
    log = read_log(write(tmp_path, text))
    item = item_of(log, plan.cluster)
    assert item.memory == (item.prediction.stage_bytes[0], 20_000 * MIB)
    figures = item.row.measured.model_copy(update={"peak_allocated_gib": None, "peak_reserved_gib": 20.0})
    first, last = (
        judge_case(item.row.model_copy(update={"measured": figures.model_copy(update={"stage": stage})}), item.case)
        for stage in (0, 3)
    )
    peaks, fragmentation = item.prediction.stage_bytes, 1 + item.case.configuration.framework.fragmentation
    assert (first.memory[0], last.memory[0]) == pytest.approx([peaks[0] * fragmentation, peaks[3] * fragmentation])


def test_deepspeed_takes_the_model_from_the_caller(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, deepspeed_log()))
    a100, model = load_cluster("a100-80gb"), load_model("llama2-7b")
    with pytest.raises(InputError, match="which model"):
        row_of(log, a100)
    item = item_of(log, a100, model=model, seq_length=4096, recompute="full")
    c = item.case.configuration
    assert (c.tp, c.dp, c.micro, c.global_batch, c.zero_stage, c.precision) == (1, 8, 2, 64, 3, "bf16")
    assert c.framework.name == "deepspeed"
    assert c.recompute == "full"
    assert item.time[1] == 2.0
    assert item.memory[1] == 41.5 * GIB


def test_deepspeeds_own_count_of_tensor_parallel_ranks(tmp_path: Path) -> None:
    text = deepspeed_log().replace('"bf16"', '"tensor_parallel": {"autotp_size": 2},\n    "bf16"')
    row = row_of(
        read_log(write(tmp_path, text)), load_cluster("a100-80gb"), model=load_model("llama2-7b"), seq_length=4096
    )
    assert (row.parallel, row.batch.global_) == ({"tp": 2, "dp": 4}, 32)


def test_symconfigs_own_deepspeed_script_says_all_but_the_model(tmp_path: Path) -> None:
    head = "8 ranks: tp 2, cp 2, dp 2; micro-batch 2 x 4 x 2 sequences of 4096; 7,000 trained parameters\n"
    lines = "".join(f"step {n} loss 9.0 lr 1e-5 time 2.5000 s tokens/s/GPU 6553.6 peak 9.5 GiB\n" for n in range(1, 9))
    log = read_log(write(tmp_path, head + lines))
    a100, model = load_cluster("a100-80gb"), load_model("llama2-7b")
    item = item_of(log, a100, model=model)
    c = item.case.configuration
    assert (c.tp, c.cp, c.dp, c.micro, c.global_batch, c.seq_length) == (2, 2, 2, 2, 16, 4096)
    assert c.cp_comm == "a2a"
    assert item.time[1] == 2.5
    with pytest.raises(InputError, match="multiply"):
        row_of(log, a100, model=model, gpus=6)


def test_what_the_caller_states_goes_first(tmp_path: Path) -> None:
    lines = "".join(iteration(number, 1000) for number in range(100, 106))
    log = read_log(write(tmp_path, lines))
    model, h100 = load_model("llama3.1-8b"), load_cluster("h100")
    with pytest.raises(InputError, match="how many GPUs"):
        row_of(log, h100, model=model)
    c = item_of(log, h100, model=model, gpus=16, micro_batch=1, seq_length=8192).case.configuration
    assert (c.tp, c.dp, c.global_batch, c.seq_length) == (1, 16, 64, 8192)


def test_another_model_than_the_logs_is_refused(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, megatron_log()))
    with pytest.raises(InputError, match="70b's num_hidden_layers"):
        row_of(log, load_cluster("a100-80gb"), model=load_model("llama3.1-70b"))


def test_a_log_without_figures_gives_no_row(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, throughput(10, 32.0).replace("MaxMemAllocated=30.25GB", "").replace("MemA", "A")))
    with pytest.raises(InputError, match="batch size"):
        row_of(log, load_cluster("a100-80gb"), model=load_model("llama2-7b"), gpus=8)


def log_of(folder: Path, text: str) -> TrainingLog:
    return read_log(write(folder, text))


def test_virtual_stages_count_without_the_option_that_sets_them(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", load_cluster("b200"), pp=4, dp=4, vpp=2)
    log = log_of(tmp_path, plan_log(plan))
    others = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
    alone = replace(log, arguments={name: value for name, value in log.arguments.items() if name not in others})
    assert alone.arguments["virtual_pipeline_model_parallel_size"] == 2
    assert run_of(alone, plan.cluster, Additions()).configuration.vpp == 2


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "gpt-oss-120b", "gpt3-175b"])
def test_the_model_of_a_plan_is_read_back_whole(tmp_path: Path, name: str) -> None:
    plan = sample_plan(name)
    found = run_of(log_of(tmp_path, plan_log(plan)), plan.cluster, Additions()).described.model
    assert meaning(found) == meaning(plan.model)


def test_what_no_audit_predicts_is_refused_at_the_log(tmp_path: Path) -> None:
    log, cluster = log_of(tmp_path, megatron_log()), load_cluster("h100")
    strange = replace(log, arguments={**log.arguments, "is_hybrid_model": True})
    with pytest.raises(InputError) as error:
        run_of(strange, cluster, Additions())
    assert [problem.field for problem in error.value.problems] == ["is_hybrid_model"]
    assert all(problem.file == log.path and problem.hint for problem in error.value.problems)
    with pytest.raises(InputError, match="Megatron-DeepSpeed"):
        run_of(replace(log, framework="deepspeed"), cluster, Additions())


SLOWER = 1.15


def log_of_a_slower_machine(folder: Path) -> tuple[Path, float]:
    """A log of Llama-2 13B whose steps take 15 % longer than predicted; the predicted seconds."""
    plan = sample_plan("llama2-13b", load_cluster("a100-80gb"))
    draft = read_log(write(folder, plan_log(plan), "draft.log"))
    _, what = read_back(draft, plan.cluster, Additions())
    seconds = predict(what.model, what.cluster, what.configuration).predicted.step_s
    return write(folder, plan_log(plan, 1e3 * SLOWER * seconds), "train.log"), seconds


def test_a_megatron_log_sharpens_the_cluster(run: Run, tmp_path: Path) -> None:
    log, _ = log_of_a_slower_machine(tmp_path)
    profile = tmp_path / "ours.yaml"
    outcome = run("calibrate", log, "--cluster", "a100-80gb", "--out", profile, "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.json()
    errors = data["clusters"][0]["mape"]
    assert errors["before"] == pytest.approx(1 - 1 / SLOWER, rel=0.02)
    assert errors["after"] < 0.6 * errors["before"]
    assert any("a steady step takes" in remark for remark in data["remarks"])
    # Every later plan on this cluster starts from there.
    again = run("calibrate", log, "--cluster", profile, "--json").json()
    assert again["clusters"][0]["mape"]["before"] == pytest.approx(errors["after"], abs=0.002)
    ours, before = load_cluster(str(profile)), load_cluster("a100-80gb")
    assert ours.kernels.gemm_efficiency.value < before.kernels.gemm_efficiency.value


def test_a_log_without_its_cluster_or_model_asks_for_them(run: Run, tmp_path: Path) -> None:
    log, _ = log_of_a_slower_machine(tmp_path)
    outcome = run("calibrate", log)
    assert outcome.code == 2
    assert "--cluster" in outcome.err
    other = write(tmp_path, deepspeed_log(), "deepspeed.log")
    outcome = run("calibrate", other, "--cluster", "a100-80gb")
    assert outcome.code == 2
    assert "which model" in outcome.err


def test_wrong_options_are_said_together(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "calibrate", tmp_path / "none.log", "--cluster", "a100-80gb", "--model", "llama2-7c", "--gpus", "0",
        "--recompute", "some",
    )  # fmt: skip
    assert outcome.code == 2
    for said in ("none.log", "llama2-7b", "--gpus", "--recompute"):
        assert said in outcome.err


def test_what_is_assumed_and_predicted_of_a_log_is_said(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, deepspeed_log(), "deepspeed.log")
    told = ("calibrate", log, "--cluster", "a100-80gb", "--model", "llama2-7b", "--gpus", "8", "--seq-length", "2048")
    said = run(*told, "--json").json()["remarks"]
    assert any("not said by the log and assumed: " in remark and "recompute none" in remark for remark in said)
    assert any("s before the fit" in remark for remark in said)
    assert not any("recompute" in remark for remark in run(*told, "--recompute", "full", "--json").json()["remarks"])


def test_what_a_log_leaves_out_names_its_option(run: Run, tmp_path: Path) -> None:
    bare = write(tmp_path, "".join(throughput(10 * step, 16.0) for step in range(1, 9)), "bare.log")
    told = ("calibrate", bare, "--cluster", "h100", "--model", "llama3.1-8b", "--gpus", "16", "--seq-length", "8192")
    outcome = run(*told)
    assert outcome.code == 2
    assert "bare.log: batch.micro: the log does not say it. Try: --micro-batch-size." in outcome.err
    assert "no global batch size" in outcome.err
    assert "Try: --global-batch-size." in outcome.err
    assert run(*told, "--micro-batch-size", "2", "--global-batch-size", "128").code == 0


@pytest.mark.parametrize(
    ("name", "value", "tried"),
    [
        ("micro_batch_size", None, " Try: --micro-batch-size."),
        ("micro_batch_size", "0", " Try: --micro-batch-size."),
        ("seq_length", None, " Try: --seq-length."),
        ("bf16", None, None),
        ("use_torch_fsdp2", "True", None),
    ],
)
def test_a_problem_of_megatron_s_log_names_an_option_only_if_it_helps(
    run: Run, tmp_path: Path, name: str, value: str | None, tried: str | None
) -> None:
    lines = [line for line in megatron_log().splitlines(keepends=True) if f"  {name} ." not in line]
    at = next(place for place, line in enumerate(lines) if "end of arguments" in line)
    if value is not None:
        lines.insert(at, f"  {name} {'.' * (48 - len(name))} {value}\n")
    outcome = run("calibrate", write(tmp_path, "".join(lines)), "--cluster", "h100")
    assert outcome.code == 2
    assert tried in outcome.err if tried else "Try" not in outcome.err


def test_a_log_of_a_run_that_died_at_once_says_how(run: Run, tmp_path: Path) -> None:
    log, _ = log_of_a_slower_machine(tmp_path)
    text = log.read_text(encoding="utf-8")
    cut = text[: text.index("elapsed time")] + "\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    died = write(tmp_path, cut, "died.log")
    outcome = run("calibrate", died, "--cluster", "a100-80gb")
    assert outcome.code == 2
    assert "out of memory before the first step" in outcome.err


def test_a_run_that_no_constant_explains_says_so(run: Run, tmp_path: Path) -> None:
    log, seconds = log_of_a_slower_machine(tmp_path)
    assert "hardly helps" not in run("calibrate", log, "--cluster", "a100-80gb").out
    text = log.read_text(encoding="utf-8")
    slow = text.replace(f"(ms): {1e3 * SLOWER * seconds:.1f}", f"(ms): {1e5 * seconds:.1f}")
    assert slow != text
    assert "The fit hardly helps" in run("calibrate", write(tmp_path, slow, "slow.log"), "--cluster", "a100-80gb").out
