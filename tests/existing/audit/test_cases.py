"""Small configurations that people's reports led to, each with what is right of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.api import existing
from symconfig.existing.audit.audit import Audit
from symconfig.format import GIB

CASES = Path(__file__).with_name("cases")


def case(name: str, **more: object) -> Audit:
    return existing.audit(str(CASES / name), **{"cluster": "h100", "plan": False, **more})


@pytest.mark.parametrize(
    ("name", "model", "gpus"),
    [
        ("c27_gptj_fsdp.sh", str(CASES / "gptj.json"), 8),
        ("acc_custom.sh", None, 8),
        ("c33_s1_sft.sh", None, 16),
        ("trainer_fsdp.sh", None, 8),
    ],
)
def test_transformers_in_shards_of_fsdp_are_read_as_that(name: str, model: str | None, gpus: int) -> None:
    done = case(name, model=model)
    assert done.reader.backend == "fsdp"
    assert done.judged is not None
    assert done.judged.plan.best.options.zero_stage == 3
    assert done.judged.plan.best.parallel.world_size == gpus
    unknown = [item.what for item in done.judged.run.assumed if "trains as" in item.value]
    assert unknown == (["that train.py"] if name == "acc_custom.sh" else [])


def test_nothing_is_concluded_from_a_trainer_that_is_not_known(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("accelerate launch --num_processes 8 --num_machines 1 mytrain.py --bs 4 --lr 1e-4\n")
    done = existing.audit(str(script), cluster="h100", plan=False)
    assert done.reader.backend == "unknown"
    assert not done.findings
    assert ["this trainer is not known"] == [problem.what for problem in done.unpredicted]


@pytest.mark.parametrize("more", ["", "--use_liger_kernel"])
def test_trl_never_has_whole_logits(more: str) -> None:
    done = case("trl_loss.sh", variables={"MORE": more})
    assert done.judged is not None
    assert done.judged.fits
    # the final norm's tensors are 1.0 GiB of this, or 0.5 in Liger's kernel
    assert done.judged.plan.best.predicted.memory["logits and loss"] <= 1.01 * GIB


@pytest.mark.parametrize(("more", "fits"), [("", False), ("--use_liger_kernel", True)])
def test_liger_makes_the_loss_of_the_trainer_in_tiles(more: str, fits: bool) -> None:
    done = case("acc_custom.sh", variables={"MORE": more})
    assert done.judged is not None
    assert done.judged.fits is fits
