"""What adapt makes is audited: an error is reported, and the result not called done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symconfig.existing.adapt.draft import Adapted
from symconfig.existing.adapt.files import adapted
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.read import read
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.megatron.flags import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron
from tests.existing.adapt.scripts import STYLES, array, options, written
from tests.sample_plans import sample_plan

FULL: dict[str, Any] = {"recompute": "full", "recompute_method": "uniform"}
# What people have beside the degrees, each with a layout that it does not go with.
MESS = (
    "",
    "--ckpt-format torch --save /ckpt/tp4 --save-interval 100",
    "--no-ckpt-fully-parallel-save --save /ckpt --save-interval 100",
    "--overlap-param-gather-with-optimizer-step",
    "--tp-comm-overlap-rs-dgrad",
    "--defer-embedding-wgrad-compute",
    "--num-distributed-optimizer-instances 2",
    "--use-ring-exchange-p2p",
    "--distribute-saved-activations",
    "--no-align-param-gather",
    "--attention-dropout 0.1",
    "--rampup-batch-size 8 8 1000",
)
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"tp": 4, "pp": 2, "dp": 2},
    {"tp": 4, "pp": 4, "vpp": 5, "dp": 1},
    {"tp": 2, "pp": 1, "dp": 8, **FULL},
    {"tp": 1, "pp": 1, "dp": 16, "zero_stage": 3},
    {"tp": 8, "pp": 2, "dp": 1, "zero_stage": 0, "overlap_param_gather": False, "overlap_grad_reduce": False},
    {"tp": 2, "pp": 2, "cp": 2, "dp": 2, "micro": 2},
)


def plan(version: str = "core_v0.19.0", **fields: Any) -> Plan:
    made = sample_plan("llama2-13b", "h100", **{"global_batch": 32, **fields})
    target = replace(made.best.target, version=version)
    return replace(
        made, best=replace(made.best, target=target), job=made.job.model_copy(update={"megatron_version": version})
    )


def errors(path: str, goal: Plan) -> list[str]:
    """The errors of an audit of the same job."""
    supplied = Supplied(goal.model, goal.best.configuration.world_size, megatron_version=megatron.version(goal))
    done = audit(read(path), supplied, goal.cluster, goal.job.limits, plan=False)
    return [finding.rule for finding in done.findings if finding.severity == "error"]


def adapt(folder: Path, content: str, goal: Plan) -> tuple[Adapted, str]:
    """The outcome, and the path of the script as it is then."""
    path = written(folder, content)
    outcome = adapted(path, goal, {})
    for file, data in outcome.files.items():
        Path(file).write_bytes(data)
    return outcome, path


def script(mine: Plan, *more: str) -> str:
    return array(mine, [*options(mine), *more])


def lines(outcome: Adapted) -> list[str]:
    return [line.strip() for line in outcome.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(LAYOUTS),
    st.sampled_from(MESS),
    st.sampled_from(["core_v0.14.0", "core_v0.16.1", "core_v0.19.0"]),
    st.sampled_from(sorted(STYLES)),
)
def test_what_is_done_has_no_error_in_an_audit(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], mess: str, version: str, style: str
) -> None:
    mine, goal = plan(version, **before), plan(version, **after)
    known = mess and flags(version).known(mess.split()[0])
    said = [*options(mine), *([mess] if known else [])]
    outcome, path = adapt(tmp_path, STYLES[style](mine, said), goal)
    found = errors(path, goal) if style != "line" else []
    assert {flaw.rule for flaw in outcome.flaws} >= set(found)
    assert not outcome.done or not found


@pytest.mark.parametrize("before", LAYOUTS[::3])
@pytest.mark.parametrize("after", LAYOUTS)
def test_plain_scripts_are_done_whatever_the_layout(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    outcome, path = adapt(tmp_path, script(plan(**before)), plan(**after))
    assert outcome.done, (outcome.unplaced, outcome.flaws)
    assert errors(path, plan(**after)) == []


def test_the_checkpoint_format_goes_with_the_sharding_both_ways(tmp_path: Path) -> None:
    plain, sharded = plan(**LAYOUTS[0]), plan(**LAYOUTS[3])
    there, path = adapt(tmp_path, script(plain), sharded)
    assert {"---ckpt-format torch_dist", "+--ckpt-format fsdp_dtensor"} <= {
        line.replace(" " * 4, "") for line in lines(there)
    }
    back = adapted(path, plain, {})
    assert back.done
    assert any(change.option == "--ckpt-format" and change.now == "torch_dist" for change in back.changes)


def test_a_variable_that_the_new_layout_makes_slow_goes(tmp_path: Path) -> None:
    mine, goal = plan(tp=2, pp=2, dp=4), plan(tp=1, pp=2, dp=8)
    outcome, path = adapt(tmp_path, script(mine), goal)
    assert outcome.done
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" not in Path(path).read_text()


def test_an_error_is_reported_with_its_line(tmp_path: Path) -> None:
    goal = plan(**LAYOUTS[2])
    source = script(plan(**LAYOUTS[0]), "--rampup-batch-size 8 7 1000", "--save /ckpt")
    outcome, path = adapt(tmp_path, source, goal)
    told = {flaw.rule: flaw for flaw in outcome.flaws}
    assert "save-without-interval" in told
    assert "It was there before." in str(told["save-without-interval"])
    assert f"{path}:" in str(told["save-without-interval"])
    assert not outcome.done


def test_memory_that_the_script_itself_needs_is_an_error_of_the_change(tmp_path: Path) -> None:
    goal = plan(tp=1, pp=1, dp=16, zero_stage=0, overlap_param_gather=False)
    outcome, _ = adapt(tmp_path, script(plan(**LAYOUTS[0])), goal)
    assert [(flaw.rule, flaw.before) for flaw in outcome.flaws] == [("out-of-memory", False)]
    assert "The plan's values bring it." in str(outcome.flaws[0])
