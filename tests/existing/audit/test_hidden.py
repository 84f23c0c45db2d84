"""A place that cannot be read hides what it can hide and nothing more; what a person says of it is marked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from symconfig.api.existing import audit
from symconfig.errors import InputError, Problem
from symconfig.existing.audit.audit import Audit
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Hides, Reading
from symconfig.report import audit as report
from symconfig.report.audit_json import to_dict
from tests.existing.audit.corpus_cases import CORPUS

SCRIPTS = Path(__file__).parents[3] / "docs" / "jobs" / "scripts"
MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000 --bf16 "
    "--use-distributed-optimizer"
)
RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --global-batch-size 64 "


def script(folder: Path, text: str) -> Path:
    path = folder / "launch.sh"
    path.write_text(text)
    return path


def values(reading: Reading) -> dict[str, str | None]:
    """Each option's first value; None: not known."""
    return {
        setting.name: None if setting.values[0].unknown else setting.values[0].text
        for setting in reading.settings
        if setting.values
    }


def dark(folder: Path, text: str, **given: str) -> list[str]:
    """Options of train.py whose value is not known."""
    found = read(str(script(folder, text)), variables=given)
    assert found.complete
    return [name for name, value in values(found).items() if value is None]


# ---- what a file hides


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (". gone.sh\nTP=4\npython train.py --tp $TP", []),
        ("TP=4\n. gone.sh\npython train.py --tp $TP --pp 2", ["--tp"]),
        (". gone.sh\npython train.py --tp ${TP:-4} --pp ${PP:=2}", ["--tp", "--pp"]),
        ("TP=4\n. gone.sh\nTP=$((TP * 2)) PP=2\npython train.py --tp $TP --pp $PP", ["--tp"]),
        ("N=2\n. gone.sh\nW=$((N * 8))\nA=(--w $W --x 1)\npython train.py ${A[@]} --y 1", ["--w"]),
        ("if [ -f gone.sh ]; then . gone.sh; else TP=4; fi\nPP=2\npython train.py --tp $TP --pp $PP", ["--tp"]),
        ("TP=4\n[ -f gone.sh ] && . gone.sh\nPP=2\npython train.py --tp $TP --pp $PP", ["--tp"]),
        ("f() { echo 2; }\n. gone.sh\npython train.py --tp $(f)", []),
        ("TP=4\nset -a; source .env; set +a\nPP=1\npython train.py --tp $TP --pp $PP", ["--tp"]),
        ('TP=4\nwhile read -r line; do export "$line"; done < .env\npython train.py --tp $TP', ["--tp"]),
        ("(. gone.sh)\npython train.py --tp ${TP:-4}", []),  # a shell of its own keeps what it sets
        ("TP=4\neval $(python make.py)\nPP=2\npython train.py --tp $TP --pp $PP", ["--tp"]),
        ("TP=4\nsource ~/.bashrc\nconda activate x\nmodule load y\npython train.py --tp $TP --pp ${PP:-2}", []),
        (". gone.sh\nIFS=, read -r a b <<< 1,2\npython train.py --tp $a --pp $b", []),
    ],
)
def test_only_what_an_unread_file_may_set_is_unknown(tmp_path: Path, text: str, hidden: list[str]) -> None:
    assert dark(tmp_path, text) == hidden


def test_what_is_appended_to_an_unknown_array_may_begin_with_any_option(tmp_path: Path) -> None:
    found = read(str(script(tmp_path, ". gone.sh\nARGS+=(--x 1)\npython train.py ${ARGS[@]} --y 1")))
    assert values(found) == {"--x": "1", "--y": "1"}
    assert [item.hides for item in found.unread] == [Hides.VARIABLES, Hides.OPTIONS]


def test_a_file_that_is_there_is_read_though_its_folder_may_have_been_changed(tmp_path: Path) -> None:
    (tmp_path / "sizes.sh").write_text("TP=2\n")
    text = 'HERE=$(cd "$(dirname "$0")" && pwd)\n. /site/gone.sh\n. "$HERE/sizes.sh"\npython train.py --tp $TP'
    assert dark(tmp_path, text) == []


def test_what_a_person_gives_holds_after_a_file_that_is_not_read(tmp_path: Path) -> None:
    assert dark(tmp_path, "TP=4\n. gone.sh\npython train.py --tp $TP --pp $PP", TP="8", PP="1") == []


def test_each_hidden_value_names_its_variable_its_place_and_the_value_otherwise() -> None:
    found = read(str(SCRIPTS / "srun_env.sh"))
    said = {(item.variable, item.option, item.otherwise) for item in found.hidden}
    assert {
        ("TP", "--tensor-model-parallel-size", None),
        ("PP", "--pipeline-model-parallel-size", "1"),
        ("MBS", "--micro-batch-size", "1"),
    } <= said
    assert {item.by.line for item in found.hidden} == {12}


@pytest.mark.parametrize(
    ("condition", "possible"),
    [
        ('if [ "$X" = 1 ]; then A+=(--x 1 --y); fi', ["--x", "--y"]),
        ('[ "$X" = 1 ] && A+=(--x 1) || A+=(--z 2)', ["--x", "--z"]),
        ('if [ "$X" = 1 ]; then A+=(--tp 2); else A+=(--tp 4); fi', ["--tp"]),
        ('case "$X" in a) A+=(--x 1);; b) A+=(--y);; esac', ["--x", "--y"]),
    ],
)
def test_options_under_an_unknown_condition_are_known_by_name(
    tmp_path: Path, condition: str, possible: list[str]
) -> None:
    found = read(str(script(tmp_path, f'. gone.sh\nA=(--a 1)\n{condition}\npython train.py "${{A[@]}}" --b 2')))
    assert found.complete
    assert values(found) == {"--a": "1", "--b": "2"}
    assert [setting.name for setting in found.possible] == possible


def test_a_value_that_a_condition_decides_is_no_option(tmp_path: Path) -> None:
    """`--tp $TP` is not taken for an option without a value."""
    text = "if [ -f x ]; then TP=2; else TP=4; fi\npython train.py --tp $TP --pp 1"
    assert dark(tmp_path, text) == ["--tp"]


# ---- what is audited and predicted all the same


def test_where_no_figure_depends_on_it_the_prediction_is_made_and_marked() -> None:
    done = audit(SCRIPTS / "launch_arrays.sh", "h100", plan=False)
    assert done.judged is not None
    assert [(item.place.line, item.by_person) for item in done.assumptions] == [(10, False), (25, False)]
    text = "\n".join(map(str, report.blocks(done)))
    assert "Predicted without source /shared/sites/hall-b/env.sh (line 10): no figure depends on it" in text
    assert "DATA_ROOT: --data-path (line 59)" in text
    assert to_dict(done)["assumptions"][0]["variables"] == ["DATA_ROOT", "TOKENIZERS", "CKPT_ROOT", "WANDB_API_KEY"]


def test_a_variable_that_an_unread_file_may_export_is_not_missed(tmp_path: Path) -> None:
    line = RUN + "--micro-batch-size 1 --tensor-model-parallel-size 2 --sequence-parallel"
    rules = [
        {finding.rule for finding in audit(script(tmp_path, text + line), "h100", plan=False).findings}
        for text in ("", ". gone.sh\n", "export CUDA_DEVICE_MAX_CONNECTIONS=8\n. gone.sh\n")
    ]
    assert {"environment-advised", "environment-missing"} <= rules[0]
    assert not {rule for found in rules[1:] for rule in found if rule.startswith("environment")}


def test_what_is_certain_is_judged_beside_what_is_hidden(tmp_path: Path) -> None:
    done = audit(script(tmp_path, f". gone.sh\n{RUN}--micro-batch-size $MBS --tensor-model-parallel-size 16"), "h100")
    assert not done.runs
    assert {"gpus-over-degrees"} <= {finding.rule for finding in done.findings if finding.severity == "error"}


# ---- what a person says of it


def test_an_assumed_file_changes_nothing_and_the_figures_say_so() -> None:
    done = audit(SCRIPTS / "accelerate_sft.sh", "h100", assume_harmless=[".env"], plan=False)
    assert done.judged is not None
    assert done.judged.plan.best.batch.micro == 2
    assert "Assuming that source .env (line 3) sets nothing of SIZE, DATASET, RUN_NAME." in str(report.blocks(done))
    (said,) = json.loads(json.dumps(to_dict(done)))["assumptions"]
    assert (said["line"], said["what"], said["asked"]) == (3, "source .env", True)


def test_one_of_two_files_is_assumed(tmp_path: Path) -> None:
    path = script(tmp_path, "TP=2\n. a/one.sh\nPP=2\n. b/two.sh\npython train.py --tp $TP --pp $PP")
    assert values(read(str(path), harmless=["one.sh"])) == {"--tp": None, "--pp": None}
    assert values(read(str(path), harmless=["b/two.sh"])) == {"--tp": None, "--pp": "2"}
    assert values(read(str(path), harmless=["one.sh", "two.sh"])) == {"--tp": "2", "--pp": "2"}
    assert values(read(str(path), harmless=["all"])) == {"--tp": "2", "--pp": "2"}


def test_words_that_a_program_prints_are_assumed_to_bring_no_options() -> None:
    path = str(CORPUS / "hidden" / "python_builds.sh")
    assert read(path, harmless=["all"]).complete
    assert read(path, harmless=["build_args.py"]).complete
    assert not read(path, harmless=["export_env.py"]).complete


def test_a_variable_without_a_value_is_an_error_that_names_set() -> None:
    with pytest.raises(InputError, match=r"31:5: --tensor-model-parallel-size: .*\$TP, .*not set.*Try: --set TP=VALUE"):
        audit(SCRIPTS / "srun_env.sh", "h100", assume_harmless=["parallel.env"], plan=False)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (". gone.sh\npython train.py --tp $TP", "other.sh", r"is none of the files .*got other.sh, need a file of"),
        ("python train.py --tp 2", "all", "has nothing to assume: all of the configuration was read"),
    ],
)
def test_a_file_that_hides_nothing_cannot_be_assumed(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(str(script(tmp_path, text)), harmless=[name])


# ---- hints


def applied(problem: Problem, asked: dict[str, object], values: Mapping[str, str]) -> bool:
    """Do the first thing that the hint names; whether it names one that was not done yet."""
    hint = (problem.hint or "").partition(" (then")[0].partition(", or ")[0]
    if files := re.findall(r"--assume-harmless (\S+)", hint):
        before = list(asked.get("assume_harmless", ()))  # type: ignore[call-overload]
        asked["assume_harmless"] = [*before, *(file for file in files if file not in before)]
        return before != asked["assume_harmless"]
    if (named := re.match(r"--set (\w+)=", hint)) is not None:
        variables = asked.setdefault("variables", {})
        assert isinstance(variables, dict)
        fresh = named[1] not in variables
        variables[named[1]] = values[named[1]]
        return fresh
    if (option := re.match(r"--(gpus|cluster|model) ", hint)) is not None:
        fresh = option[1] not in asked
        asked[option[1]] = {"gpus": 16, "cluster": "h100", "model": "llama2-7b"}[option[1]]
        return fresh
    return False


def followed(path: Path, values: Mapping[str, str]) -> Audit:
    """The audit after each hint was done that names an option of the command, one after the other."""
    asked: dict[str, object] = {}
    for _ in range(9):
        try:
            done = audit(path, plan=False, **asked)  # type: ignore[arg-type]
            problems: Sequence[Problem] = done.unpredicted
        except InputError as error:
            problems = error.problems
        if not problems:
            return done
        assert any(applied(problem, asked, values) for problem in problems), list(map(str, problems))
    raise AssertionError(asked)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (SCRIPTS / "launch_arrays.sh", {}),
        (SCRIPTS / "srun_env.sh", {"TP": "4"}),
        (SCRIPTS / "deepspeed_hostfile.sh", {}),
        (SCRIPTS / "accelerate_sft.sh", {}),
        (CORPUS / "hidden" / "ssh_hosts.sh", {}),
        (CORPUS / "hidden" / "getopts_case.sh", {}),
        (CORPUS / "hidden" / "common_functions.sh", {}),
        (CORPUS / "unreadable" / "sourced_elsewhere.sh", {"SITE_TP": "4", "SITE_PP": "2"}),
        (CORPUS / "unreadable" / "extra_from_environment.sh", {"EXTRA_ARGS": ""}),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_what_the_hints_name_leads_to_a_prediction(path: Path, values: Mapping[str, str]) -> None:
    assert followed(path, values).judged is not None


def test_no_value_is_asked_for_that_the_script_sets_itself() -> None:
    done = audit(CORPUS / "unreadable" / "layers_from_config.sh", "h100", plan=False)
    assert done.unpredicted
    assert not [problem for problem in done.unpredicted if "--set" in (problem.hint or "")]


def test_a_script_that_starts_nothing_says_which_file_may_and_what_to_give(tmp_path: Path) -> None:
    says = (
        r"and common.sh \(line 1\) is not read \(got commands setup, run_it.*Try: common.sh .*if run_it is a function"
    )
    with pytest.raises(InputError, match=says):
        read(str(script(tmp_path, "source common.sh\nsetup\nrun_it --tp 8\n")))
