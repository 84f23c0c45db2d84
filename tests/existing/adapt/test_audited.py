"""What adapt makes is audited, and its diff is one that a colleague merges."""

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
from tests.existing.adapt.scripts import STYLES, applied, array, head, lines, options, plan, start, written
from tests.sample_models import sample_model
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


def of_version(version: str = "core_v0.19.0", **fields: Any) -> Plan:
    made = sample_plan("llama2-13b", "h100", **{"global_batch": 32, **fields})
    target = replace(made.best.target, version=version)
    return replace(
        made, best=replace(made.best, target=target), job=made.job.model_copy(update={"megatron_version": version})
    )


def errors(path: Path, goal: Plan) -> list[str]:
    """The errors of an audit of the same job."""
    supplied = Supplied(goal.model, goal.best.configuration.world_size, megatron_version=megatron.version(goal))
    done = audit(read(str(path)), supplied, goal.cluster, goal.job.limits, plan=False)
    return [finding.rule for finding in done.findings if finding.severity == "error"]


def script(mine: Plan, *more: str) -> str:
    return array(mine, [*options(mine), *more])


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
    mine, goal = of_version(version, **before), of_version(version, **after)
    known = mess and flags(version).known(mess.split()[0])
    said = [*options(mine), *([mess] if known else [])]
    outcome, path = applied(tmp_path, STYLES[style](mine, said), goal)
    found = errors(path, goal) if style != "line" else []
    assert {flaw.rule for flaw in outcome.flaws} >= set(found)
    assert not outcome.done or not found


@pytest.mark.parametrize("before", LAYOUTS[::3])
@pytest.mark.parametrize("after", LAYOUTS)
def test_plain_scripts_are_done_whatever_the_layout(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    outcome, path = applied(tmp_path, script(of_version(**before)), of_version(**after))
    assert outcome.done, (outcome.unplaced, outcome.flaws)
    assert errors(path, of_version(**after)) == []


def test_the_checkpoint_format_goes_with_the_sharding_both_ways(tmp_path: Path) -> None:
    plain, sharded = of_version(**LAYOUTS[0]), of_version(**LAYOUTS[3])
    there, path = applied(tmp_path, script(plain), sharded)
    assert {"-    --ckpt-format torch_dist", "+    --ckpt-format fsdp_dtensor"} <= {*lines(there)}
    back = adapted(str(path), plain, {})
    assert back.done
    assert any(change.option == "--ckpt-format" and change.now == "torch_dist" for change in back.changes)


def test_a_variable_that_the_new_layout_makes_slow_goes(tmp_path: Path) -> None:
    mine, goal = of_version(tp=2, pp=2, dp=4), of_version(tp=1, pp=2, dp=8)
    outcome, path = applied(tmp_path, script(mine), goal)
    assert outcome.done
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" not in path.read_text()


def test_an_error_is_reported_with_its_line(tmp_path: Path) -> None:
    goal = of_version(**LAYOUTS[2])
    source = script(of_version(**LAYOUTS[0]), "--rampup-batch-size 8 7 1000", "--save /ckpt")
    outcome, path = applied(tmp_path, source, goal)
    told = {flaw.rule: flaw for flaw in outcome.flaws}
    assert "save-without-interval" in told
    assert "It was there before." in str(told["save-without-interval"])
    assert f"{path}:" in str(told["save-without-interval"])
    assert not outcome.done


def test_memory_that_the_script_itself_needs_is_an_error_of_the_change(tmp_path: Path) -> None:
    goal = of_version(tp=1, pp=1, dp=16, zero_stage=0, overlap_param_gather=False)
    outcome, _ = applied(tmp_path, script(of_version(**LAYOUTS[0])), goal)
    assert [(flaw.rule, flaw.before) for flaw in outcome.flaws] == [("out-of-memory", False)]
    assert "The plan's values bring it." in str(outcome.flaws[0])


EXPERTS = {"model": sample_model("mixtral-8x7b", num_hidden_layers=8), "pp": 4, "ep": 4, "global_batch": 32}


def switched(mine: Plan, *without: str, tp: int) -> str:
    """With tp in a variable that switches sequence parallelism on, and experts in an array of their own."""
    said = [each for each in options(mine) if each.split()[0] not in ("--tensor-model-parallel-size", *without)]
    said = [each for each in said if each != "--sequence-parallel"]
    experts = [each for each in said if "moe" in each or "expert" in each]
    arrays = "".join(
        f"{name}_ARGS=(\n{''.join(f'    {each}{chr(10)}' for each in mine)})\n"
        for name, mine in (("MODEL", [each for each in said if each not in experts]), ("MOE", experts))
    )
    parallel = (
        'PARALLEL_ARGS=(--tensor-model-parallel-size $TP)\n[ "$TP" -gt 1 ] && PARALLEL_ARGS+=(--sequence-parallel)\n'
    )
    words = '"${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${PARALLEL_ARGS[@]}"'
    return f"{head(mine)}TP=${{TP:-{tp}}}\n{parallel}{arrays}{start(mine)} {words}\n"


def merged(folder: Path, content: str, goal: Plan) -> tuple[Adapted, str]:
    outcome, path = applied(folder, content, goal)
    assert outcome.done, outcome.unplaced
    return outcome, path.read_text()


def test_the_default_of_a_variable_changes_with_all_that_follows_it(tmp_path: Path) -> None:
    outcome, now = merged(tmp_path, switched(plan(tp=2, dp=4), tp=2), plan(tp=1, dp=8, sequence_parallel=False))
    assert "TP=${TP:-1}\n" in now
    assert "--tensor-model-parallel-size $TP" in now
    assert {change.option for change in outcome.changes} >= {"--tensor-model-parallel-size", "--sequence-parallel"}


def test_an_audit_finds_nothing_that_the_files_of_the_plan_do_not_have(tmp_path: Path) -> None:
    goal = plan(tp=1, dp=8, **{**EXPERTS, "pp": 2})
    supplied = Supplied(goal.model, goal.best.configuration.world_size, megatron_version=megatron.version(goal))

    def found(path: str) -> set[str]:
        return {each.rule for each in audit(read(path), supplied, goal.cluster, goal.job.limits, plan=False).findings}

    own = found(written(tmp_path, switched(goal, tp=1)))
    for old in (plan(tp=2, dp=4, **{**EXPERTS, "pp": 2}), plan(tp=1, dp=4, **EXPERTS)):
        for without in ((), ("--moe-grouped-gemm",), ("--overlap-grad-reduce", "--overlap-param-gather")):
            merged(tmp_path, switched(old, *without, tp=old.best.configuration.tp), goal)
            assert found(str(tmp_path / "train.sh")) <= own
