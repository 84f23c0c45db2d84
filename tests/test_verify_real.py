"""The table of real ranks: every model has a job, and differences are neither hidden nor rounded away."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from symconfig.descriptor.load import zoo_clusters, zoo_models
from symconfig.verify.checks import Compared
from tests.sample_plans import sample_plan
from tools.verify import real as verify_real
from tools.verify.real import Judged, in_page, jobs, markdown

PLAN = sample_plan("llama2-13b")


def judged(*compared: Compared) -> Judged:
    return Judged({"model": "llama2-13b", "cluster": "h100", "gpus": 1024}, PLAN, 0, (), 3, compared, 12.3, 1.5 * 2**30)


def test_every_model_of_the_zoo_has_one_job() -> None:
    found = jobs()
    assert sorted(job["model"] for job in found) == zoo_models()
    assert {job["cluster"] for job in found} <= set(zoo_clusters())


def test_numbers_are_said_to_be_equal_or_how_far_apart_however_little() -> None:
    whole = 2_271_543_296
    same = judged(Compared("parameters", whole, whole, "count"), Compared("parameters", 7, 7, "count"))
    table = markdown([same])
    for said in ("| 2,271,543,296 (equal) |", "| 1,024 x h100 |", "| 3 | 2,271", "12 s, 1.50 GiB |"):
        assert said in table
    assert len({line.count("|") for line in table.splitlines()}) == 1
    for ours, said in (((1.02, 1.0), "(+0 to +2 %)"), ((0.5, 1.5), "(-50 to +50 %)")):
        table = markdown([judged(*(Compared("optimizer shard", value * 2**30, 2**30, "bytes") for value in ours))])
        assert said in table
        assert "equal" not in table
    assert "| failed, 12 s" in markdown([replace(same, code=1)])  # though every number shown is equal
    assert markdown([judged()]).splitlines()[-1].count(" - |") == 4  # not compared


def test_the_readmes_table_is_replaced_and_nothing_else() -> None:
    text = "a\n<!-- real: written by `python -m tools verify real` -->\nold\n<!-- end of real -->\nb\n"
    assert in_page(text, "| new |") == text.replace("old\n", "\n| new |\n\n")
    with pytest.raises(SystemExit, match="no place"):
        in_page("nothing here", "| new |")


def test_a_job_is_planned_written_and_verified_by_the_commands_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_real, "CHECKS", {"megatron": ("--megatron", str(tmp_path / "absent"))})
    job = {"model": "llama2-7b", "cluster": "a100-80gb", "gpus": 8, "global_batch_size": 64}
    found = verify_real.judge(job, tmp_path / "out")
    assert (found.code, found.ranks, found.compared) == (2, 0, ())
    assert found.failures  # bad input is said, not shown as a row of dashes
    assert found.plan.best.configuration.world_size == 8
    own = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # which a child is a copy of before it runs
    assert 2**24 < found.peak_bytes < 2**31 + own
