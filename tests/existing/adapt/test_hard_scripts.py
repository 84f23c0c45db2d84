"""Scripts of which not all can be known: what can be placed is placed, and the rest is said, never guessed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from symconfig.existing.adapt.draft import Adapted
from symconfig.existing.adapt.files import adapted
from symconfig.plans.plan import Plan
from tests.existing.adapt.scripts import head, options, start, written
from tests.sample_plans import sample_plan


def plan(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", **{"tp": 4, "pp": 2, "dp": 2, "global_batch": 32, **fields})


MINE, GOAL = plan(), plan(tp=2, dp=4, micro=2)
TP, MICRO = "--tensor-model-parallel-size", "--micro-batch-size"


def script(said: str, before: str = "", after: str = "\n") -> str:
    """With these words for the degrees and the batch, and the rest of the plan's own."""
    others = (TP, MICRO, "--global-batch-size", "--pipeline-model-parallel-size")
    rest = " ".join(option for option in options(MINE) if not option.startswith(others))
    return f"{head(MINE)}{before}{start(MINE)} {said} {rest}{after}"


REST = "--global-batch-size 32 --pipeline-model-parallel-size 2"


def adapt(folder: Path, content: str, goal: Plan = GOAL, extra: tuple[str, ...] = (), **variables: str) -> Adapted:
    return adapted(written(folder, content), goal, variables, extra)


def new(outcome: Adapted) -> str:
    return outcome.files[outcome.reading.file].decode()


def unplaced(outcome: Adapted) -> dict[str, str | None]:
    return {item.option: item.now for item in outcome.unplaced}


def test_what_a_command_prints_is_left_to_a_person(tmp_path: Path) -> None:
    source = script(f"{MICRO} 1 {TP} $(nvidia-smi -L | wc -l) {REST}")
    outcome = adapt(tmp_path, source)
    assert unplaced(outcome) == {TP: "2"}
    assert "its value" in outcome.unplaced[0].why
    assert new(outcome) == source.replace(f"{MICRO} 1", f"{MICRO} 2")
    assert unplaced(adapt(tmp_path, source, MINE)) == {TP: "4"}  # it may be right, but nobody knows


def test_a_value_under_a_condition_is_left_to_a_person(tmp_path: Path) -> None:
    before = 'if [ "$(hostname)" = big ]; then TP=8; else TP=4; fi\n'
    for word in ("$TP", '"$TP"'):
        outcome = adapt(tmp_path, script(f"{MICRO} 1 {TP} {word} {REST}", before))
        assert unplaced(outcome) == {TP: "2"}
        assert f"{TP} {word}" in new(outcome)


def test_an_option_that_a_condition_may_add_is_left_to_a_person(tmp_path: Path) -> None:
    before = 'ARGS=()\nif [ "$(hostname)" = big ]; then\n  ARGS+=(--recompute-granularity full)\nfi\n'
    outcome = adapt(
        tmp_path,
        script(f'{MICRO} 1 {TP} 4 {REST} "${{ARGS[@]}}"', before),
        plan(recompute="selective", recompute_modules=("core_attn",)),
    )
    assert "--recompute-granularity" in unplaced(outcome)


def test_a_value_that_makes_another_is_changed_only_where_it_is_used(tmp_path: Path) -> None:
    before = "TP=4\nMICRO=1\nGLOBAL=$((MICRO * 32))\n"
    said = f"{MICRO} $MICRO --global-batch-size $GLOBAL {TP} ${{TP}} --pipeline-model-parallel-size 2 --save out/tp$TP"
    outcome = adapt(tmp_path, script(said, before))
    assert not outcome.unplaced
    assert before in new(outcome)
    assert f"{MICRO} 2 --global-batch-size $GLOBAL {TP} 2 --pipe" in new(outcome)


def test_arguments_of_the_command_line_are_not_edited_in_the_file(tmp_path: Path) -> None:
    source = script(f"{MICRO} 1 {REST}", after=' "$@"\n')
    outcome = adapt(tmp_path, source, extra=(TP, "4"))
    assert unplaced(outcome) == {TP: "2"}
    assert new(outcome) == source.replace(f"{MICRO} 1", f"{MICRO} 2")


def test_functions_loops_and_shells_in_shells_are_seen_through(tmp_path: Path) -> None:
    words = script(f"{MICRO} 1 {TP} $1 {REST}").split("torchrun", 1)
    source = f"{words[0]}run() {{\n    torchrun{words[1]}}}\nrun 4\n"
    assert "run 2\n" in new(adapt(tmp_path, source))
    nested = script(f"{MICRO} 1 {TP} 4 {REST}").replace("torchrun", 'srun bash -c "torchrun').rstrip("\n") + '"\n'
    assert new(adapt(tmp_path, nested)) == nested.replace(f"{MICRO} 1 {TP} 4", f"{MICRO} 2 {TP} 2")


def test_each_file_that_is_sourced_is_edited_itself(tmp_path: Path) -> None:
    common = "TP=4  # of common\r\nBATCH=(\r\n  --micro-batch-size 1\r\n)\r\n"
    (tmp_path / "common.sh").write_bytes(common.encode())
    source = script(f"${{BATCH[@]}} {TP} $TP {REST}", "source common.sh\n")
    outcome = adapt(tmp_path, source, plan(tp=2, dp=4, micro=2, recompute="selective", recompute_modules=("mlp",)))
    assert not outcome.unplaced
    assert outcome.files[str(tmp_path / "common.sh")].decode() == common.replace("TP=4", "TP=2").replace(
        "size 1\r", "size 2\r"
    )
    assert new(outcome).startswith(source.rstrip("\n").partition(" --mock-data")[0].partition("--bf16")[0])
    assert len(re.findall(r"^--- ", outcome.diff, re.MULTILINE)) == 2


def test_a_line_of_arguments_is_adapted_too() -> None:
    line = " ".join(options(MINE))
    outcome = adapted(line, GOAL, {})
    assert not outcome.unplaced
    assert next(iter(outcome.files.values())).decode() == line.replace(f"{MICRO} 1", f"{MICRO} 2").replace(
        f"{TP} 4", f"{TP} 2"
    )


def test_an_option_that_unknown_words_may_give_already_is_not_added(tmp_path: Path) -> None:
    source = script(f"$EXTRA {MICRO} 1 {TP} 4 {REST}")
    outcome = adapt(tmp_path, source, plan(micro=2, recompute="selective", recompute_modules=("mlp",)))
    assert new(outcome) == source.replace(f"{MICRO} 1", f"{MICRO} 2")
    assert "--recompute-granularity" in unplaced(outcome)
    assert all("may give it already" in item.why for item in outcome.unplaced)


def test_of_two_precisions_only_the_plan_s_stays(tmp_path: Path) -> None:
    source = script(f"--fp16 {MICRO} 2 {TP} 2 {REST}")
    assert new(adapt(tmp_path, source)) == source.replace("--fp16 ", "")


def test_a_variable_that_is_cut_loose_is_told(tmp_path: Path) -> None:
    outcome = adapt(tmp_path, script(f"{MICRO} 1 {TP} $TP {REST} --save out/$TP", "TP=4\n"))
    assert any("does not follow $TP any more" in note for note in outcome.notes)


def test_words_inside_of_a_shell_s_code_are_quoted_for_it(tmp_path: Path) -> None:
    before = plan(pp=2, vpp=1)
    goal = plan(pp=2, pipeline_layout="Et*20|t*20L")
    source = f"{head(before)}srun bash -c '{start(before)} {' '.join(options(before))}'\n"
    outcome = adapt(tmp_path, source, goal)
    assert '"Et*20|t*20L"' in new(outcome)
