"""`--help`: commands in groups, and examples that run."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from symconfig.cli import main
from symconfig.cli.options import Command
from tests.cli.support import LLAMA_CONFIG, Run
from tests.runs.checkpoint.folders import torch_dist

EXAMPLES = [(command.name, text) for command in main.commands([]) for text in command.examples]
NOT_RUN = {
    "measure": "needs a GPU",
    "calibrate": "needs measured runs",
    "validate": "needs measured runs",
    "size": "makes plans for a quarter of a minute; tests/runs/sweep/test_size.py runs a smaller one",
    "serve": "listens until it is stopped; tests/serve asks it",
    "whatif": "makes dozens of plans; tests/cli/test_replan.py runs a smaller one",
    "verify": "starts the real frameworks, as tests/verify does",
}


@pytest.fixture
def helped(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what words print that only help."""

    def call(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        assert ended.value.code == 0
        return capsys.readouterr().out

    return call


def test_the_commands_stand_in_groups_each_once(helped: Callable[..., str]) -> None:
    told = helped("--help")
    assert helped() == helped("help") == told
    places = [told.index(f"\n{title}:\n") for title in main.GROUPS]
    assert places == sorted(places)
    for title, commands in main.GROUPS.items():
        section = told.split(f"\n{title}:\n")[1].split("\n\n")[0]
        names = re.findall(r"^  (\w+)", section, re.MULTILINE)
        assert names == list(commands)
    assert "`symconfig COMMAND --help` shows" in told


def test_help_of_a_command_shows_the_options_of_a_first_job_and_then_all(helped: Callable[..., str]) -> None:
    def options(*words: str) -> list[str]:
        return re.findall(r"^  (--[a-z-]+)", helped(*words), re.MULTILINE)

    first, every = options("plan", "--help"), options("plan", "--help-all")
    assert options("help", "plan") == first
    (plan,) = main.commands(["plan"])
    assert sorted(first) == sorted(("--help-all", *plan.first))
    assert len(plan.first) == 10
    assert {*first} < {*every}
    assert {"--set", "--memory-margin", "--launcher", "--json"} < {*every}


@pytest.mark.parametrize("command", [None, *main.MODULES])
def test_help_fits_a_page_and_ends_with_examples(
    helped: Callable[..., str], monkeypatch: pytest.MonkeyPatch, command: str | None
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = helped(*([command] if command is not None else []), "--help")
    assert [line for line in told.splitlines() if len(line) > 80] == []
    if command is not None:
        examples = re.split(r"\nexamples?:\n", told)
        assert len(examples) == 2
        assert 1 <= len(main.commands([command])[0].examples) <= 2
        assert f"symconfig {command}" in examples[1]
        assert examples[1].count("--help") == 0


def words_of(text: str) -> list[str]:
    """The words of an example for symconfig; of $(symconfig …) those within."""
    inner = re.search(r"\$\((symconfig .*?)\)", text)
    words = shlex.split((inner[1] if inner else text).replace("\\\n", " "))
    assert words[0] == "symconfig"
    return words[1:]


@pytest.mark.parametrize(("command", "text"), EXAMPLES)
def test_every_example_is_understood(command: str, text: str) -> None:
    words = words_of(text)
    arguments, unknown = main.parser_of(words).parse_known_args(words)
    assert unknown == []
    assert arguments.command.__name__ == f"run_{command}"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that examples name."""
    desk = tmp_path_factory.mktemp("desk")
    job = "model: llama2-13b\ncluster: h100\ngpus: 64\nglobal_batch_size: 1024\n"
    (desk / "job.yaml").write_text(job, encoding="utf-8")
    sweep = "job: {model: llama2-7b, cluster: h100, global_batch_size: 16}\nsweep: {gpus: [8]}\n"
    (desk / "sweep.yaml").write_text(sweep, encoding="utf-8")
    (desk / "config.json").write_text(json.dumps(LLAMA_CONFIG), encoding="utf-8")
    shutil.copy(Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh", desk / "train.sh")
    assert main.main(["plan", str(desk / "job.yaml"), "--out", str(desk / "out")]) == 0
    shutil.copytree(desk / "out", desk / "again")
    return torch_dist(desk / "checkpoints", inside=True).parents[0]


@pytest.mark.parametrize(("command", "text"), [each for each in EXAMPLES if each[0] not in NOT_RUN])
def test_every_example_runs(
    run: Run, planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, text: str
) -> None:
    desk = tmp_path / "desk"
    shutil.copytree(planned, desk)
    monkeypatch.chdir(desk)
    if command in ("plan", "replan"):  # which write the folder that other examples read
        shutil.rmtree(desk / {"plan": "out", "replan": "again"}[command])
    ended = run(*words_of(text))
    assert ended.code in ((0, 1) if command in ("audit", "estimate") else (0,)), (
        ended.err
    )  # the script runs out of memory with TP=2


def typed(command: Command) -> list[str]:
    """Return the options whose values are read before the command runs."""
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    return [action.option_strings[0] for action in parser._actions if action.option_strings and action.type]


@pytest.mark.parametrize("command", [each for each in main.commands([]) if typed(each)], ids=lambda each: each.name)
def test_wrong_values_of_all_options_are_told_at_once(
    run: Run, planned: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(planned)
    options = typed(command)
    said = run.refused(*words_of(command.examples[0]), *(f"{option}=x,;=?" for option in options))
    assert said.count("error: ") >= len(options) / 3, said  # a name or a path may be any text
