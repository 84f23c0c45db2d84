"""Names that carry numbers of the old layout are pointed out, with what to think about, and stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.existing.adapt.files import adapted
from symconfig.existing.adapt.outcome import Adapted, Stale
from tests.existing.adapt.scripts import array, options, written
from tests.existing.adapt.test_hard_scripts import GOAL, MINE  # tp 4, pp 2, dp 2, mbs 1 -> tp 2, dp 4, mbs 2

SAVING = "--save-interval 100"


def adapt(folder: Path, *more: str, before: str = "") -> Adapted:
    source = array(MINE, [*options(MINE), *more]).replace("ARGS=(", f"{before}ARGS=(")
    return adapted(written(folder, source), GOAL, {})


def only(outcome: Adapted) -> Stale:
    assert len(outcome.stale) == 1, outcome.stale
    return outcome.stale[0]


def test_a_path_that_says_the_old_degrees_is_named_with_its_line(tmp_path: Path) -> None:
    outcome = adapt(tmp_path, "--save /ckpt/tp4pp2", SAVING)
    found = only(outcome)
    line = Path(outcome.reading.file).read_text().splitlines()[found.place.line - 1]
    assert "--save /ckpt/tp4pp2" in line
    assert line[found.place.column - 1 :].startswith("tp4")
    assert (found.option, found.token, found.now) == ("--save", "tp4", "tp 2")  # pp stays
    assert "another folder to save to" in str(found)
    assert "--save /ckpt/tp4pp2" in outcome.files[outcome.reading.file].decode()


def test_a_name_made_of_a_variable_is_found_where_it_is_made(tmp_path: Path) -> None:
    before = "TP=4\nEXP=llama_tp${TP}_mbs1\n"
    outcome = adapt(tmp_path, "--save /ckpt/$EXP", SAVING, "--tensorboard-dir /tb/$EXP", before=before)
    found = only(outcome)
    assert found.option == "EXP (in --save, --tensorboard-dir)"
    assert (found.token, found.now) == ("tp4 and mbs1", "tp 2 and mbs 2")
    text = Path(outcome.reading.file).read_text().splitlines()
    assert text[found.place.line - 1].startswith("EXP=")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--load /ckpt/run-tp4",), "what the old layout saved"),
        (("--load /ckpt/tp4", "--save /ckpt/tp4", SAVING), "another folder to save to"),
        (("--wandb-exp-name x-tp-4",), "runs of both layouts go under one"),
        (("--wandb-exp-name DP2_run",), "DP2, and the run has dp 4"),
    ],
)
def test_what_to_think_about_depends_on_what_the_name_is_for(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    assert said in " ".join(map(str, adapt(tmp_path, *more).stale))


@pytest.mark.parametrize(
    "name", ["/ckpt/tp8", "/ckpt/pp2", "/ckpt/ftp4", "/ckpt/tp4.5", "/ckpt/tp42", "/ckpt/run4", "/ckpt/shttp4"]
)
def test_other_numbers_and_other_words_are_no_degrees(tmp_path: Path, name: str) -> None:
    assert adapt(tmp_path, f"--save {name}", SAVING).stale == ()


def test_a_line_of_the_script_that_no_option_has_is_found_and_a_comment_is_not(tmp_path: Path) -> None:
    before = "# tp4 was best\nmkdir -p logs/tp4  # tp4\n"
    found = only(adapt(tmp_path, before=before))
    assert (found.option, found.value) == ("the line", "mkdir -p logs/tp4")


def test_the_scheduler_s_job_name_is_a_name(tmp_path: Path) -> None:
    source = array(MINE, options(MINE)).replace("#!/bin/bash\n", "#!/bin/bash\n#SBATCH --job-name=l13b-tp4\n")
    found = only(adapted(written(tmp_path, source), GOAL, {}))
    assert found.option == "#SBATCH --job-name"
    assert found.place.line == 2


def test_nothing_is_said_where_nothing_changes(tmp_path: Path) -> None:
    source = array(MINE, [*options(MINE), "--save /ckpt/tp4", SAVING])
    assert adapted(written(tmp_path, source), MINE, {}).stale == ()


def test_where_a_recipe_hides_the_run_the_changes_say_the_numbers(tmp_path: Path) -> None:
    text = (
        "torchrun --nnodes 2 --nproc_per_node 8 scripts/run_recipe.py --recipe llama2_13b_pretrain_config \\\n"
        "  model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=2 model.seq_length=4096 \\\n"
        "  train.micro_batch_size=2 train.global_batch_size=32 checkpoint.save=/ckpt/tp4pp2\n"
    )
    found = only(adapted(written(tmp_path, text), GOAL, {}))
    assert (found.option, found.token, found.now, found.place.line) == ("checkpoint.save", "tp4", "tp 2", 3)
    assert "another folder to save to" in found.advice
