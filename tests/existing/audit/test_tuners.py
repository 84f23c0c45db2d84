"""Scripts of TRL, LLaMA-Factory, ms-swift and NeMo-RL: what is read of them, and that written plans come back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api import existing
from symconfig.descriptor.load import load_model
from symconfig.existing.audit.audit import Audit
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.launch.read import read
from symconfig.format import picked
from symconfig.graph.model import parameters
from symconfig.plans.configuration import DEGREES, FIELDS
from symconfig.plans.plan import Plan
from symconfig.render import render
from tests.existing.audit.support import text
from tests.existing.audit.verl_scripts import phases
from tests.runs.rl.support import planned, section

COUNT = parameters(load_model("qwen3-8b")).total


DPO = text("trl_dpo.sh")
ZERO3 = text("accelerate_zero3.yaml")


GRPO = text("swift_grpo.sh")


PAIRED = ["reference", "update"]


FACTORY = text("llamafactory.yaml")
BASE = text("nemo_rl.yaml")


CHILD = text("nemo_rl_megatron.yaml")


def written(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def audited(source: str, **more: Any) -> Audit:
    return existing.audit(source, "h100", **({"plan": False, "prompt_length": 300.0, "response_length": 900.0} | more))


def held(found: Audit, name: str = "update") -> Any:
    assert found.judged is not None, [str(problem) for problem in found.unpredicted]
    return next(phase for phase in found.judged.plan.tuned[0].phases if phase.name == name).holds


def files(plan: Plan, tmp_path: Path) -> str:
    """Write the files of a plan, and return the script that starts them."""
    assert plan.job.target is not None
    made = render(plan, plan.job.target)
    for item in made:
        (tmp_path / item.path).write_text(item.text)
    return str(tmp_path / ("launch.sh" if "launch.sh" in made.paths() else "train.sh"))


@pytest.mark.parametrize(("target", "width"), [("trl", 2), ("llamafactory", 4)])
def test_frozen_weights_in_the_shards_of_fsdp_are_as_wide_as_its_accelerate_has_them(
    target: str, width: int, tmp_path: Path
) -> None:
    """Adapters are fp32 in both (PEFT, autocast_adapter_dtype; accelerate, fsdp2_prepare_model)."""
    given: dict[str, Any] = {"preference": {"pairs": 32}, "sequences": {"mean": 600.0, "max": 2048}, "lora": {"r": 16}}
    plan = symconfig.plan("qwen3-8b", "h100", 8, pins={"instances": "1"}, backend="fsdp", target=target, **given).plan
    count, (update,) = parameters(plan.model), (each for each in plan.tuned[0].phases if each.name == "update")
    held = (width * (count.total - count.trainable) + 4 * count.trainable) / 8
    assert update.holds["weights"] == pytest.approx(held)
    again = audited(files(plan, tmp_path), gpus=8).judged
    for one, other in zip(plan.tuned[0].phases, again.plan.tuned[0].phases, strict=True):
        assert (one.name, one.holds) == (other.name, pytest.approx(other.holds, rel=1e-3))


def test_accelerates_own_file_says_how_weights_are_kept(tmp_path: Path) -> None:
    """arXiv:1910.02054: ZeRO-3 has 2, 2 and 12 bytes of a parameter in shards; torch's replicas, with a model in fp32
    under autocast, 4, 4 and 8; FSDP the same in shards (verl keeps them so, too)."""
    script = written(tmp_path, "dpo.sh", DPO.replace("MORE ", ""))
    written(tmp_path, "acc.yaml", ZERO3)
    found = audited(script)
    assert found.reader.gpus == 8
    assert held(found)["optimizer state"] == pytest.approx(12 * COUNT / 8, rel=1e-3)
    assert held(found)["reference"] == held(found)["weights"]
    assert not found.findings
    for kind, shards in (("FSDP", 8), ("MULTI_GPU", 1)):
        written(tmp_path, "acc.yaml", f"distributed_type: {kind}\nnum_processes: 8\nnum_machines: 1\n")
        parts = [held(audited(script))[name] for name in ("weights", "gradients", "optimizer state")]
        assert parts == pytest.approx([4 * COUNT / shards, 4 * COUNT / shards, 8 * COUNT / shards], rel=1e-3)
    written(tmp_path, "acc.yaml", "distributed_type: [\n")
    assert not audited(script).reading.complete


@pytest.mark.parametrize(
    ("stage", "kind", "examples"),
    [("sft", "full", 0), ("dpo", "lora", 64), ("dpo", "full", 64), ("kto", "lora", 64), ("rm", "lora", 64)],
)
def test_stages_of_a_yaml_of_arguments(stage: str, kind: str, examples: int, tmp_path: Path) -> None:
    text = FACTORY.replace("STAGE", stage).replace("KIND", kind)
    found = audited(written(tmp_path, "job.yaml", text), gpus=8)
    assert found.judged is not None, found.unpredicted
    batch, preference = found.judged.plan.best.configuration, found.judged.plan.job.preference
    assert (preference.pairs or preference.answers if preference is not None else 0) == examples
    assert (batch.micro, batch.num_microbatches) == (1 if stage in ("sft", "kto") else 2, 8)
    names = [each.name for each in found.judged.plan.tuned[0].phases] if found.judged.plan.tuned else []
    assert names == {"sft": ["update"], "rm": ["update"], "kto": ["KL term", *PAIRED]}.get(stage, PAIRED)
    adapter = found.judged.plan.model.adapter
    assert (adapter is not None) == (kind == "lora")
    if adapter is not None:
        assert (adapter.r, adapter.lora_alpha, len(adapter.target_modules)) == (8, 16.0, 7)


@pytest.mark.parametrize("longest", ["null", "0"])
def test_without_a_longest_sequence_nemo_rl_is_not_predicted(tmp_path: Path, longest: str) -> None:
    found = audited(
        written(tmp_path, "base.yaml", BASE.replace("sequence_length: 4096", f"sequence_length: {longest}"))
    )
    assert "policy.max_total_sequence_length" in {problem.field for problem in found.unpredicted}


def test_nemo_rl_inherits_and_replaces(tmp_path: Path) -> None:
    written(tmp_path, "base.yaml", BASE)
    child = written(tmp_path, "child.yaml", CHILD)
    stated = {each.name: each.texts for each in read(child).settings}
    assert stated["policy.sequence_packing.train_mb_tokens"] == ("8192",)
    assert stated["policy.dtensor_cfg.enabled"] == ("false",)
    assert "policy.dtensor_cfg.activation_checkpointing" not in stated
    found = audited(child)
    assert found.judged is not None, found.unpredicted
    assert not found.findings
    best, rl = found.judged.plan.best, found.judged.plan.job.rl
    c = best.configuration
    assert (c.tp, c.dp, c.seq_length, c.sequence_parallel) == (4, 2, 8192, True)
    assert (rl.prompts, rl.samples, rl.updates, rl.longest, rl.rollout.tp) == (32, 8, 1, 4096, 2)
    command = f"uv run examples/run_grpo.py --config {child} policy.megatron_cfg.tensor_model_parallel_size=2"
    with_override = audited(written(tmp_path, "run.sh", command + "\n"))
    assert with_override.judged is not None, with_override.unpredicted
    assert with_override.judged.plan.best.configuration.tp == 2
    sharded = phases(audited(str(tmp_path / "base.yaml")))["update"].holds
    parts = [sharded[f"actor's {name}"] for name in ("weights", "gradients", "optimizer state")]
    assert parts == pytest.approx([4 * COUNT / 8, 4 * COUNT / 8, 8 * COUNT / 8], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--rlhf_type gkd", "this program is not predicted"),
        ("--rlhf_type ppo", "TRL's experimental trainer, without an engine, which TRL has no more since 1.16"),
        ("--tuner_type adalora", "trained in this way are not predicted"),
        ("--use_vllm false", "generation without vLLM is not predicted"),
        ("--num_generations 7", "does not divide what is generated at once"),
        ("--model my/model", "the model is not one that is known by its name"),
    ],
)
def test_what_is_not_predicted_has_one_reason(words: str, why: str, tmp_path: Path) -> None:
    found = audited(written(tmp_path, "grpo.sh", GRPO.replace("MORE", words)))
    assert found.judged is None
    assert [why in problem.what for problem in found.unpredicted] == [True]


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("trl sft --model_name_or_path x --dataset_name y", ("trl", "sft", False)),
        ("python examples/scripts/dpo_vlm.py --learning_rate 1", ("trl", "dpo", False)),
        ("python train_grpo.py --model_name_or_path x --dataset_name y", ("trl", "grpo", False)),
        ("torchrun run/trl_cpo.py --config config.yaml", ("trl", "cpo", False)),
        ("megatron rlhf --rlhf_type dpo --model x", ("ms-swift", "dpo", True)),
        ("torchrun swift/cli/sft.py --model x", ("ms-swift", "sft", False)),
        ("llamafactory-cli train --stage rm --cutoff_len 8", ("llamafactory", "reward", False)),
        ("torchrun src/train.py --stage rm --finetuning_type full", ("llamafactory", "reward", False)),
        ("torchrun posttrain_gpt.py --stage sft --num-layers 2", None),
        ("torchrun pretrain_gpt.py --num-layers 2", None),
        ("deepspeed train.py --model_name_or_path x --dataset_name y", None),
    ],
)
def test_programs_are_known_by_their_names_or_their_options(line: str, program: Any, tmp_path: Path) -> None:
    known = tuners.program(read(written(tmp_path, "run.sh", line + "\n")))
    assert (known and (known.tuner.name, known.method, known.megatron)) == program


MEMORY = ("weights", "optimizer state")


# What each has where nothing is said, as its documentation has it: examples of a micro-batch and of an update, tokens,
# layers recomputed, rank and alpha of adapters; whole bytes of a weight, and of its optimizer's state in replicas.
@pytest.mark.parametrize(
    ("line", "batch", "recompute", "adapter", "width"),
    [
        ("accelerate launch -m trl.scripts.sft --dataset_name x --use_peft", (8, 64, 1024), "full", (16, 32.0), (4, 0)),
        ("llamafactory-cli train --stage sft --bf16 true", (8, 64, 2048), "full", (8, 16.0), (2, 0)),
        ("llamafactory-cli train --finetuning_type full --bf16 true", (8, 64, 2048), "full", None, (2, 12)),
        ("NPROC_PER_NODE=8 swift sft --max_length 4096", (1, 16, 4096), "full", (8, 32.0), (2, 0)),
        ("torchrun --nproc_per_node 8 -m axolotl.cli.train --sequence_len 512", (1, 8, 512), "none", None, (2, 4)),
        ("torchrun --nproc_per_node 8 run_clm.py --block_size 512 --per_device_train_batch_size 8 --bf16 true",
         (8, 64, 512), "none", None, (2, 12)),
    ],
)  # fmt: skip
def test_defaults_are_each_program_s_own(
    line: str,
    batch: tuple[int, int, int],
    recompute: str,
    adapter: tuple[int, float] | None,
    width: tuple[int, int],
    tmp_path: Path,
) -> None:
    found = audited(written(tmp_path, "run.sh", f"{line} --model_name_or_path Qwen/Qwen3-8B\n"), gpus=8)
    assert found.judged is not None, found.unpredicted
    plan = found.judged.plan
    best, lora = plan.best, plan.model.adapter
    assert (best.configuration.micro, best.configuration.global_batch, best.configuration.seq_length) == batch
    assert best.configuration.recompute == recompute
    assert (lora and (lora.r, lora.lora_alpha)) == adapter
    weights, states = (best.predicted.memory[name] / parameters(plan.model).total for name in MEMORY)
    assert (int(weights), round(states)) == width


@pytest.mark.parametrize(("strategy", "copies"), [("FULL_SHARD", 2), ("NO_SHARD", 8), ("HYBRID_SHARD", 1)])
def test_the_strategy_of_shards_decides_over_the_mesh(strategy: str, copies: int, tmp_path: Path) -> None:
    config = (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
        f"fsdp_config: {{fsdp_sharding_strategy: {strategy}}}\n"
        "parallelism_config: {parallelism_config_dp_replicate_size: 2}\n"
    )
    line = f"accelerate launch --config_file {written(tmp_path, 'own.yaml', config)} run_clm.py --block_size 512"
    line += " --per_device_train_batch_size 1 --model_name_or_path Qwen/Qwen3-0.6B"
    found = audited(written(tmp_path, "run.sh", line))
    assert found.judged is not None, found.unpredicted
    assert found.judged.plan.best.configuration.instances == copies


def tuned(job: dict[str, Any], **pins: str) -> Plan:
    return symconfig.plan("qwen3-8b", "h100", 8, pins=pins, top=1, **job).plan


SEQUENCES = {"mean": 600.0, "max": 2048}
SHARDED = {"backend": "fsdp", "target": "llamafactory", "global_batch_size": 64, "seq_length": 2048}
PAIRS, FREE = ({"preference": {"pairs": 32, **loss}, "sequences": SEQUENCES} for loss in ({}, {"loss": "simpo"}))
ROOM = {"tokens_per_gpu": 4096, "response_length": {"mean": 300.0, "max": 1024}}
STEP = {"backend": "fsdp", "target": "trl", "rl": section(reference=False)}
PLANS: dict[str, Callable[[], Plan]] = {
    "trl, GRPO": lambda: planned("qwen3-8b", target="trl"),
    "nemo-rl, GRPO": lambda: planned("qwen3-8b", target="nemo-rl", pins={"pp": "1", "cp": "1"}, **ROOM),
    "openrlhf, GRPO": lambda: planned("qwen3-8b", target="openrlhf", **ROOM),
    "openrlhf, rewards": lambda: planned("qwen3-8b", target="openrlhf", reward_model={"model": "qwen3-4b"}, **ROOM),
    # Through Accelerate's own file, which TRL's script is started with in DeepSpeed's place.
    "trl, GRPO in shards": lambda: tuned(STEP, instances="1"),
    "trl, GRPO in groups": lambda: tuned(STEP, instances="2"),
    # All weights in the shards are fp32 (accelerate, fsdp2_prepare_model), those of a reference, too.
    "llamafactory, all layers recomputed": lambda: tuned(SHARDED | {"task": "sft"}, recompute="full"),
    "llamafactory, in groups": lambda: tuned(SHARDED | {"task": "sft"}, recompute="none", instances="2"),
    "llamafactory, LoRA": lambda: tuned(SHARDED | {"task": "lora", "lora": {"r": 16}}),
    "llamafactory, pairs in shards": lambda: tuned(SHARDED | PAIRS),
    "llamafactory, pairs without a reference": lambda: tuned(SHARDED | FREE),
    **{
        f"{target}, {' '.join(map(str, preference.values()))}": partial(
            tuned, {"target": target, "preference": preference, "sequences": SEQUENCES}, zero="3", mbs="..4"
        )
        for target, preference in (
            *((target, {"pairs": 64}) for target in ("trl", "llamafactory", "ms-swift-deepspeed")),
            ("trl", {"answers": 64, "loss": "kto"}),
            ("trl", {"pairs": 64, "loss": "simpo"}),
            *((target, {"pairs": 64, "loss": "reward"}) for target in ("llamafactory", "ms-swift-deepspeed")),
        )
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    more = {"variables": {"REWARD_MODEL": "Qwen/Qwen3-4B"}} if name.endswith("rewards") else {}
    found = audited(files(plan, tmp_path), gpus=8, prompt_length=100.0, **more)
    assert not [finding.rule for finding in found.findings if finding.severity == "error"]
    assert found.judged is not None, found.unpredicted
    again = found.judged.plan
    names = (*DEGREES, "instances", "zero_stage") if plan.rl else FIELDS
    assert picked(again.best.configuration, *names) == picked(plan.best.configuration, *names)
    if not plan.rl:
        assert again.best.predicted.peak_bytes == pytest.approx(plan.best.predicted.peak_bytes, rel=1e-3)
    if plan.tuned:
        assert (again.job.preference, again.task) == (plan.job.preference, plan.task)
    if not plan.rl and not plan.tuned:
        return
    mine, theirs = (plan.rl or plan.tuned)[0], (again.rl or again.tuned)[0]
    for one, other in zip(mine.phases, theirs.phases, strict=True):
        assert (one.name, one.bytes) == (other.name, pytest.approx(other.bytes, rel=1e-3))
        assert one.holds == pytest.approx(other.holds, rel=1e-3)
    if plan.rl:
        assert (theirs.rollout_tp, theirs.memory_share, theirs.away) == (mine.rollout_tp, mine.memory_share, mine.away)


def test_pairs_have_a_better_plan_for_their_own_trainer(tmp_path: Path) -> None:
    text = FACTORY.replace("STAGE", "dpo").replace("KIND", "lora")
    found = audited(written(tmp_path, "job.yaml", text), gpus=8, plan=True)
    assert found.better is not None, found.infeasible
    assert (found.better.job.target, found.better.job.task) == ("llamafactory", "dpo")
    assert found.gain is not None
    assert found.gain > 0.0
    assert found.gain == pytest.approx(1 - found.better.tuned[0].step_s / found.judged.plan.tuned[0].step_s)


def test_ms_swift_on_megatron_is_read_and_no_plan_is_for_it(tmp_path: Path) -> None:
    """Its reference is read before the forward of the policy, whose activations are not there yet."""
    text = (
        "NPROC_PER_NODE=4 megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-8B --tuner_type full --max_length 2048 "
        "--dataset pairs --tensor_model_parallel_size 4 --sequence_parallel true --micro_batch_size 4 "
        "--global_batch_size 16 --recompute_granularity full --recompute_method uniform --recompute_num_layers 1\n"
    )
    found = audited(written(tmp_path, "dpo.sh", text), plan=True)
    assert found.judged is not None, found.unpredicted
    phases = {phase.name: phase.holds for phase in found.judged.plan.tuned[0].phases}
    assert "policy's activations and logits" not in phases["reference"]
    assert found.better is None
    assert "no target trains on preferences with Megatron-LM" in (found.infeasible or "")
