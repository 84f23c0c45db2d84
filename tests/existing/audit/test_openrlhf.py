"""OpenRLHF's and slime's scripts: what is read of them in either spelling, and the phases of what they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.existing.audit.audit import Audit
from symconfig.graph.model import parameters
from tests.existing.audit.support import text
from tests.existing.audit.verl_scripts import audited, phases

COUNT = parameters(load_model("qwen3-8b")).total
RAY = text("openrlhf_ray.sh")
OLD = text("openrlhf_old_names.sh")
TUNED = text("openrlhf_tuned.sh")


def ray(*more: str) -> Audit:
    return audited(RAY.replace("MORE", " ".join(more)))


def tuned(program: str, *more: str) -> Audit:
    return audited(TUNED.replace("PROGRAM", program).replace("MORE", " ".join(more)))


def test_both_spellings_of_its_options_are_one_run() -> None:
    new, old = ray(), audited(OLD)
    assert not new.findings
    plan, rl = new.judged.plan, new.judged.plan.job.rl
    assert (rl.prompts, rl.samples, rl.updates, rl.batch, rl.longest) == (128, 8, 4, 256, 4096)
    assert (plan.best.configuration.zero_stage, plan.best.configuration.num_microbatches) == (3, 256 / 2 / 8)
    assert plan.rl == old.judged.plan.rl
    assert plan.rl[0].away == ("optimizer state",)


def test_numbers_of_gpus_stand_in_one_order() -> None:
    """Not in that of a set, which is another in each process."""
    assert [word.text for word in ray().reading.world.words] == ["8", "1", "8", "1", "4", "2"]


def test_zero_3_keeps_sixteen_bytes_of_a_parameter_in_shards_and_the_reference_two() -> None:
    """arXiv:1910.02054: 2 of weights, 2 of gradients, 12 of fp32 weights and moments; the reference has weights."""
    found = ray()
    held = phases(found)["update"].holds
    assert held["actor's optimizer state"] == pytest.approx(12 * COUNT / 8, rel=1e-3)
    assert held["actor's gradients"] == pytest.approx(2 * COUNT / 8, rel=1e-3)
    assert held["reference"] == held["actor's weights"]
    assert "actor's optimizer state" not in phases(found)["generation"].holds
    assert "reference" not in phases(ray("--ref.offload"))["update"].holds
    assert "reference" in phases(ray("--ref.offload --ds.zero_stage 2 --train.micro_batch_size 1"))["update"].holds


def test_roles_with_gpus_of_their_own_work_beside_each_other() -> None:
    """Engines, critic and actor are three pools of 8; the engine waits for the update unless it is asynchronous."""
    apart = RAY.replace("--train.colocate_all", "--train.colocate_actor_ref").replace("group_norm", "gae")
    text = apart.replace("MORE", "--critic.num_nodes 1 --critic.num_gpus_per_node 8")
    found = audited(text)
    assert found.reader.gpus == 24
    by_name = phases(found)
    assert "critic's optimizer state" not in by_name["update"].holds
    assert not {name for name in by_name["update of the critic"].holds if name.startswith("actor's")}
    step = found.judged.plan.rl[0]
    of_critic = sum(phase.seconds for phase in step.phases if phase.name in ("values", "update of the critic"))
    of_actor = sum(phase.seconds for phase in step.phases[1:]) - of_critic
    assert step.step_s == pytest.approx(step.phases[0].seconds + max(of_actor, of_critic))
    beside = audited(text.replace("--vllm.enable_sleep", "--train.async_enable"))
    assert beside.judged.plan.rl[0].step_s == pytest.approx(max(step.phases[0].seconds, of_actor, of_critic))


def held(found: Audit, name: str) -> Any:
    assert found.judged is not None, found.unpredicted
    return next(phase for phase in found.judged.plan.tuned[0].phases if phase.name == name).holds


def test_pairs_are_twice_as_many_sequences_and_a_reference_reads_them() -> None:
    dpo, sft = tuned("train_dpo"), tuned("train_sft")
    assert (dpo.judged.plan.best.configuration.micro, sft.judged.plan.best.configuration.micro) == (4, 2)
    assert (
        dpo.judged.plan.best.configuration.num_microbatches
        == sft.judged.plan.best.configuration.num_microbatches
        == 64 / 2 / 8
    )
    assert held(dpo, "update")["reference"] == held(dpo, "update")["weights"]
    assert "reference" not in held(tuned("train_dpo", "--ref.offload"), "update")
    assert [phase.name for phase in sft.judged.plan.tuned[0].phases] == ["update"]
    # fp32 logits and their gradient: 8 bytes for each of 4 x 2,048 tokens; no variable holds them until that is copied
    # (runs/rl/test_memory.py counts them).
    logits = 8 * 4 * 2048 * 151936
    assert held(dpo, "update")["activations, head and loss"] > logits


SLIME = text("slime_qwen3.sh")


def script(tmp_path: Path, *, model: bool = True) -> Path:
    (tmp_path / "models").mkdir()
    if model:
        (tmp_path / "models" / "qwen3-8B.sh").write_text(
            "MODEL_ARGS=(--swiglu --num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32 "
            "--group-query-attention --num-query-groups 8 --use-rotary-position-embeddings --disable-bias-linear "
            "--normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 1000000 --vocab-size 151936 --kv-channels 128 "
            "--qk-layernorm --untie-embeddings-and-output-weights)\n"
        )
    path = tmp_path / "run.sh"
    path.write_text(SLIME)
    return path


@pytest.mark.parametrize("model", [True, False])
def test_slime_with_its_own_defaults(tmp_path: Path, model: bool) -> None:
    """bf16 and the distributed optimizer are slime's; a model in a file that is not there has the checkpoint's name."""
    found = audited(str(script(tmp_path, model=model)))
    assert [(finding.rule, str(finding.problem)) for finding in found.findings] == []
    plan = found.judged.plan
    assert (found.judged.run.described.zoo, found.reader.gpus) == ("qwen3-8b", 8)
    assert plan.best.configuration.zero_stage == 1
    rl = plan.job.rl
    assert (rl.prompts, rl.samples, rl.updates, rl.tokens_per_gpu, rl.placement) == (32, 8, 2, 9216, "colocated")
    assert plan.rl[0].away == ("weights", "optimizer state")  # --colocate offloads
    assert "bf16" not in {item.what for item in found.judged.run.assumed}
    assert ("longest prompt", "1,024 tokens") in {(item.what, item.value) for item in found.judged.run.assumed}


def test_slimes_updates_are_of_global_batches_of_samples(tmp_path: Path) -> None:
    path = script(tmp_path)
    path.write_text(path.read_text().replace("--global-batch-size 128", "--num-steps-per-rollout 4"))
    found = audited(str(path))
    rl = found.judged.plan.job.rl
    assert (rl.updates, rl.batch) == (4, 64)


def test_more_of_slimes_updates_than_samples_are_refused(tmp_path: Path) -> None:
    path = script(tmp_path)
    path.write_text(path.read_text().replace("--global-batch-size 128", "--num-steps-per-rollout 4000"))
    (problem,) = audited(str(path)).unpredicted
    assert (problem.field, problem.what, problem.got) == ("--num-steps-per-rollout", "is too large", "4,000")


@pytest.mark.parametrize(
    ("said", "gpus", "field"),
    [
        ("--actor-num-nodes 0 --colocate", None, "--actor-num-nodes"),
        ("--actor-num-nodes 0 --rollout-num-gpus 8", None, "--actor-num-nodes"),
        ("--actor-num-nodes 1 --rollout-num-gpus 8", 8, "--rollout-num-gpus"),
    ],
)
def test_the_option_that_leaves_slime_no_gpu_is_named(tmp_path: Path, said: str, gpus: int | None, field: str) -> None:
    path = script(tmp_path)
    path.write_text(path.read_text().replace("--colocate", "").replace("--actor-num-nodes 1", said))
    assert [problem.field for problem in audited(str(path), gpus=gpus).unpredicted] == [field]


def test_fine_tuning_by_slime_is_refused(tmp_path: Path) -> None:
    path = script(tmp_path)
    path.write_text(path.read_text().replace("--colocate", "--colocate --loss-type sft_loss"))
    assert [problem.what for problem in audited(str(path)).unpredicted] == ["fine-tuning by slime is not predicted"]


@pytest.mark.parametrize(("launcher", "read"), [("ray job submit -- ", True), ("", False)])
def test_a_shell_reads_the_words_of_ray_s_job_again(tmp_path: Path, launcher: str, read: bool) -> None:
    """So slime's own scripts have a list of layers in single quotes within double ones."""
    words = (
        "--actor-num-gpus-per-node 8 --colocate --hf-checkpoint /root/Qwen3-30B-A3B --rollout-batch-size 32 "
        "--n-samples-per-prompt 8 --num-layers 48 --rollout-max-response-len 8192 --global-batch-size 256 "
        """--moe-layer-freq "'([1]*48)'" --num-experts 128"""
    )
    path = tmp_path / "run.sh"
    path.write_text(f"{launcher}python3 train.py {words}\n")
    refused = [problem.field for problem in audited(str(path)).unpredicted]
    assert ("--moe-layer-freq" not in refused) is read


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("--data.max_len 0", "--data.max_len: has a wrong value"),
        ("--vllm.num_engines", "generation without vLLM is not predicted"),
        ("--vllm.gpu_memory_utilization", "the engine's share of the memory is not said"),
        ("--vllm.gpu_memory_utilization nan", "has a wrong value"),
        ("--ref.num_gpus_per_node", ""),  # 8 without a value, too
    ],
)
def test_values_that_are_missing_or_malformed_are_refused_once(more: str, refused: str) -> None:
    problems = [str(problem) for problem in ray(more).unpredicted]
    assert [refused in problem for problem in problems] == ([True] if refused else [])


def test_a_fraction_as_slimes_batch_is_a_wrong_value() -> None:
    script = text("slime_qwen3.sh")
    found = audited(script.replace("--global-batch-size 128", "--global-batch-size 3.5"))
    assert script.count("--global-batch-size 128") == 1
    assert "samples-left-over" not in {finding.rule for finding in found.findings}
    assert ["has a wrong value" in str(problem) for problem in found.unpredicted] == [True]
