"""Scripts that start more than one run: what all of them say is changed for all, and nothing in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.existing.adapt.scripts import head, options, start
from tests.existing.adapt.test_hard_scripts import MICRO, MINE, REST, TP, adapt, new, script, unplaced

REST_OF = " ".join(option for option in options(MINE) if not option.startswith((TP, MICRO)))


def run(said: str) -> str:
    return f"{start(MINE)} {said} {REST_OF}"


@pytest.mark.parametrize(
    "body",
    [
        f"for TP in 1 2 4; do\n  {run(f'{MICRO} 1 {TP} $TP')}\ndone\n",
        f"{run(f'{MICRO} 1 {TP} 4')}\n{run(f'{MICRO} 1 {TP} 8')}\n",
        f"go() {{ {run(f'{MICRO} 1 $@')}; }}\ngo {TP} 4\ngo {TP} 8 --eval-only\n",
        f"if nvidia-smi; then\n{run(f'{MICRO} 1 {TP} 4')}\nelse\n{run(f'{MICRO} 1 {TP} 8')}\nfi\n",
    ],
)
def test_runs_with_different_values_are_left_with_their_places(tmp_path: Path, body: str) -> None:
    outcome = adapt(tmp_path, head(MINE) + body)
    assert outcome.files == {}
    assert unplaced(outcome)[MICRO] == "2"
    assert "is started" in outcome.unplaced[0].why
    assert "train.sh:" in outcome.unplaced[0].why


@pytest.mark.parametrize(
    "body",
    [
        f'P="{MICRO} 1 {TP} 4"\n{run("$P")}\n{run("$P")} --finetune\n',
        f"{run(f'{MICRO} 1 {TP} 4')}\n{run(f'{MICRO} 1 {TP} 4')} --finetune\n",
        f"for SEED in 1 2; do {run(f'{MICRO} 1 {TP} 4')} --seed $SEED; done\n",
    ],
)
def test_runs_that_say_the_same_are_changed_alike(tmp_path: Path, body: str) -> None:
    outcome = adapt(tmp_path, head(MINE) + body)
    assert not outcome.unplaced
    assert new(outcome) == (head(MINE) + body).replace(f"{MICRO} 1", f"{MICRO} 2").replace(f"{TP} 4", f"{TP} 2")
    assert any("2 times" in note for note in outcome.notes)


@pytest.mark.parametrize("other", ["python convert.py --target-tp $TP", "mkdir -p tp_$TP", "X=$(size --of $TP)"])
def test_what_another_program_is_given_stays(tmp_path: Path, other: str) -> None:
    outcome = adapt(tmp_path, script(f"{MICRO} 1 {TP} $TP {REST}", f"TP=4\n{other}\n"))
    assert not outcome.unplaced
    assert f"TP=4\n{other}\n" in new(outcome)
    assert f"{TP} 2 " in new(outcome)


def test_a_sourced_file_that_changes_is_said_to_serve_others(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text("TP=4\n")
    outcome = adapt(tmp_path, script(f"{MICRO} 1 {TP} $TP {REST}", "source common.sh\n"))
    assert any("common.sh is changed as well" in note for note in outcome.notes)
