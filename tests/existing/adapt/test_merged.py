"""A diff that a colleague merges: variables keep their meaning, and options stand with their like."""

from __future__ import annotations

from pathlib import Path

from symconfig.existing.adapt.draft import Adapted
from symconfig.existing.adapt.files import adapted
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.read import read
from symconfig.existing.recover.run import Supplied
from symconfig.plans.plan import Plan
from symconfig.render import megatron
from tests.existing.adapt.scripts import head, options, start, written
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan

EXPERTS = {"model": sample_model("mixtral-8x7b", num_hidden_layers=8), "pp": 4, "ep": 4, "global_batch": 32}


def plan(**fields: object) -> Plan:
    return sample_plan(**{"model": "llama2-13b", "tp": 2, "pp": 2, "dp": 4, "global_batch": 32, **fields})  # type: ignore[arg-type]


def script(mine: Plan, *without: str, tp: int) -> str:
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


def adapt(folder: Path, content: str, goal: Plan) -> tuple[Adapted, str]:
    path = written(folder, content)
    outcome = adapted(path, goal, {})
    assert outcome.done, outcome.unplaced
    for file, data in outcome.files.items():
        Path(file).write_bytes(data)
    return outcome, Path(path).read_text()


def test_the_default_of_a_variable_changes_with_all_that_follows_it(tmp_path: Path) -> None:
    outcome, now = adapt(tmp_path, script(plan(), tp=2), plan(tp=1, dp=8, sequence_parallel=False))
    assert "TP=${TP:-1}\n" in now
    assert "--tensor-model-parallel-size $TP" in now
    assert {change.option for change in outcome.changes} >= {"--tensor-model-parallel-size", "--sequence-parallel"}


def test_an_audit_finds_nothing_that_the_files_of_the_plan_do_not_have(tmp_path: Path) -> None:
    goal = plan(tp=1, dp=8, **{**EXPERTS, "pp": 2})
    supplied = Supplied(goal.model, goal.best.configuration.world_size, megatron_version=megatron.version(goal))

    def found(path: str) -> set[str]:
        return {each.rule for each in audit(read(path), supplied, goal.cluster, goal.job.limits, plan=False).findings}

    own = found(written(tmp_path, script(goal, tp=1)))
    for old in (plan(tp=2, dp=4, **{**EXPERTS, "pp": 2}), plan(tp=1, dp=4, **EXPERTS)):
        for without in ((), ("--moe-grouped-gemm",), ("--overlap-grad-reduce", "--overlap-param-gather")):
            adapt(tmp_path, script(old, *without, tp=old.best.configuration.tp), goal)
            assert found(str(tmp_path / "train.sh")) <= own


def test_a_line_that_adds_one_option_goes_with_it(tmp_path: Path) -> None:
    mine = plan(tp=1, dp=8, sequence_parallel=False)
    for line in ("ARGS+=({})", '[ "$PROFILE" != 1 ] && ARGS+=({})', "if [ 4 -gt 1 ]; then ARGS+=({}); fi"):
        said = [each for each in options(mine) if each != "--overlap-param-gather"]
        content = f"ARGS=({' '.join(said)})\nPROFILE=0\n{line.format('--overlap-param-gather')}\n"
        goal = plan(tp=1, dp=8, sequence_parallel=False, overlap_param_gather=False)
        _, now = adapt(tmp_path, f'{head(mine)}{content}{start(mine)} "${{ARGS[@]}}"\n', goal)
        assert "ARGS+=" not in now
        assert now.count("\n") == head(mine).count("\n") + 3
