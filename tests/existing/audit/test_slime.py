"""Scripts of slime: what is read of them, and what a plan put into them gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.existing.audit.support import text
from tests.existing.audit.verl_scripts import audited

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
