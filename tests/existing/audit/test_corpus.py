"""What people have is read as they would read it: every file of the corpus, held against expected.yaml and bash."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.api.existing import audit
from symconfig.errors import InputError
from symconfig.existing.audit.audit import Audit
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.frameworks.megatron.flags import flags

CORPUS = Path(__file__).parent / "corpus"
EXPECTED = CORPUS / "expected.yaml"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One way to start one file; the head of expected.yaml says what the fields mean. None: nothing is expected."""

    file: str
    style: str
    extra: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    format: str | None = None
    program: str | None = None
    gpus: int | None = None
    recipe: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, int] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)
    zero: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    unknown_values: tuple[str, ...] = ()
    complete: bool | None = None
    unread: Mapping[int, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    wrong: str | None = None
    refused: str | None = None
    predicted: bool | None = None
    exit: int | None = None
    says: frozenset[str] = frozenset()  # the fields that are given

    @property
    def path(self) -> Path:
        return CORPUS / self.file

    def __str__(self) -> str:
        return " ".join((self.file, *self.extra, *(f"{name}={value}" for name, value in self.variables.items())))


@cache
def cases() -> tuple[Case, ...]:
    """In the file's order. Raises TypeError for a field that there is not."""
    return tuple(_case(entry) for entry in yaml.safe_load(EXPECTED.read_text()))


def _case(entry: Mapping[str, Any]) -> Case:
    lists = {item.name for item in fields(Case) if str(item.type).startswith("tuple")}
    values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in entry.items()}
    return Case(**values, says=frozenset(entry))


LAUNCHERS = ("torchrun", "python", "python3", "deepspeed", "accelerate", "uv")
WRAPPERS = ("srun", "mpirun", "docker", "ray")  # start the program among their arguments
TOOLS = ("bash", "sh", "dirname", "basename", "date", "cat", "head", "tee")
MUTE = ("mkdir", "clear", "module", "conda", "scontrol", "shuf", "jq", "nvidia-smi", "sed", "sleep")
RECORDED = """#!{bash}
printf '%s\\0' "$@" '\n' >> "{log}"
"""
WRAPPED = """#!{bash}
while (($#)); do
  case "$1" in bash|sh|torchrun|python) exec "$@" ;; esac
  shift
done
"""


def arguments(script: Path, extra: Sequence[str], folder: Path) -> list[str] | None:
    """The words after the training program in the command with most of them, in a copy of the script's folder.

    None: it starts none.
    """
    bash = shutil.which("bash")
    assert bash is not None
    bin_, work, log = folder / "bin", folder / "work", folder / "argv"
    shutil.copytree(script.parent, work)
    bin_.mkdir()
    for name in TOOLS:
        (bin_ / name).symlink_to(shutil.which(name) or bash)
    for names, text in ((LAUNCHERS, RECORDED), (WRAPPERS, WRAPPED), (MUTE, "#!{bash}\n")):
        for name in names:
            (bin_ / name).write_text(text.format(bash=bash, log=log))
            (bin_ / name).chmod(0o755)
    subprocess.run(
        [bash, script.name, *extra],
        cwd=work,
        env={"PATH": str(bin_), "HOME": str(work)},
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if not log.exists():
        return None
    commands = [command.split("\0") for command in log.read_text().split("\0\n\0")[:-1]]
    words = max((command for command in commands), key=len)
    program = next((index for index, word in enumerate(words) if word.endswith(".py")), -1)
    return words[program + 1 :]


READ = [case for case in cases() if case.refused is None]
REFUSED = [case for case in cases() if case.refused is not None]
DESTS = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "micro": "micro_batch_size", "global": "global_batch_size",
    "seq": "seq_length",
}  # fmt: skip
# Why bash itself starts no training from these here.
NOT_STARTED = {
    "sites/kubernetes_elastic.sh": "stops where it enters a folder of its container",
    "unreadable/placeholders.sh": "is no bash until it is filled in",
}


@cache
def reading(case: Case) -> Reading:
    return read(str(case.path), variables=case.variables, extra=case.extra)


def names(found: Reading) -> Namespace:
    return Namespace(found.settings, flags(version_of([setting.name for setting in found.settings])))


def test_the_corpus_is_whole() -> None:
    named = {case.file for case in cases()}
    beside = {"env.sh", "model_13b.sh", "model_sizes.sh", "common.sh", EXPECTED.name}  # sourced by others
    files = {str(path.relative_to(CORPUS)) for path in CORPUS.rglob("*") if path.is_file() and path.name not in beside}
    configurations = {file for file in files if not file.endswith(".json")} | named
    assert named <= files
    assert configurations <= named, f"not in {EXPECTED.name}: {sorted(configurations - named)}"
    assert len({case.file for case in cases()}) >= 60
    assert len([case for case in cases() if case.file.startswith("broken/")]) >= 12
    assert len([case for case in cases() if case.complete is False]) >= 6


@pytest.mark.parametrize("case", READ, ids=str)
def test_a_file_is_read_for_what_it_is(case: Case) -> None:
    found = reading(case)
    if "format" in case.says:
        assert found.format == case.format
    if "program" in case.says:
        assert (found.program.text if found.program else None) == case.program
    if "gpus" in case.says:
        assert found.world.gpus == case.gpus
    if case.recipe is not None:
        assert found.recipe.text == case.recipe
    for name, value in case.environment.items():
        assert found.environment[name].text == value
    assert found.file == str(case.path)


@pytest.mark.parametrize("case", [case for case in READ if case.options or case.unknown], ids=str)
def test_its_options_have_their_values(case: Case) -> None:
    found = names(reading(case))
    given = {dest: list(value) if isinstance(value, tuple) else value for dest, value in found.items()}
    assert {dest: given.get(dest) for dest in case.options} == dict(case.options)
    assert {setting.name for setting in found.unknown} >= set(case.unknown)


@pytest.mark.parametrize("case", [case for case in READ if case.options and case.parallel], ids=str)
def test_its_degrees_and_batch(case: Case) -> None:
    found = names(reading(case))
    wanted = {**case.parallel, **case.batch}
    assert {name: found[dest] for name, dest in DESTS.items() if name in wanted} == {
        name: wanted[name] for name in DESTS if name in wanted
    }


@pytest.mark.parametrize("case", [case for case in READ if case.complete is not None], ids=str)
def test_what_was_not_understood_is_said(case: Case) -> None:
    found = reading(case)
    hidden = [item for item in found.unread if item.matters]
    dark = {setting.name for setting in found.settings if any(word.unknown for word in setting.values)}
    if case.complete:
        assert {item.place.line for item in hidden} <= set(case.unread)
        assert found.complete
        assert case.unknown_values or not dark & {"--" + dest.replace("_", "-") for dest in DESTS.values()}
    else:
        assert not found.complete
    assert dark >= set(case.unknown_values)
    for line, word in case.unread.items():
        assert [item for item in hidden if item.place.line == line and word in item.what + item.why], hidden


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_cannot_be_read_is_refused(case: Case) -> None:
    with pytest.raises(InputError, match=case.refused):
        reading(case)


@cache
def audited(case: Case) -> Audit:
    asked = case.asked
    return audit(
        case.path, asked.get("cluster", "h100"), asked.get("gpus"), model=asked.get("model"),
        seq_length=asked.get("seq_length"), variables=case.variables, arguments=case.extra, plan=False,
    )  # fmt: skip


@pytest.mark.parametrize("case", READ, ids=str)
def test_what_is_wrong_is_found_and_nothing_else_is(case: Case) -> None:
    done = audited(case)
    assert {finding.rule for finding in done.findings} >= set(case.rules)
    errors = {finding.rule for finding in done.findings if finding.severity == "error"}
    assert errors <= {*case.rules, "out-of-memory"}
    if case.exit is not None:
        assert (not done.runs) == bool(case.exit)
    assert (done.judged is not None) == case.predicted, done.unpredicted


@pytest.mark.parametrize("case", [case for case in READ if case.predicted], ids=str)
def test_a_prediction_is_of_the_model_and_the_run_that_stand_there(case: Case) -> None:
    judged = audited(case).judged
    best = judged.plan.best
    if "model" in case.says:
        assert judged.run.described.zoo == case.model
    degrees = {name: getattr(best.configuration, name) for name in case.parallel}
    assert degrees == dict(case.parallel)
    if case.batch:
        batch = {
            "micro": best.configuration.micro,
            "global": best.configuration.global_batch,
            "seq": best.configuration.seq_length,
        }
        assert batch == dict(case.batch)
    if case.zero:
        assert best.configuration.zero_stage == case.zero["stage"]
    predicted = best.predicted
    assert sum(predicted.time.values()) == pytest.approx(predicted.step_s)
    assert predicted.time["compute"] >= predicted.mfu * predicted.step_s  # model FLOP at the peak, whatever runs again


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in READ
        if case.format == "bash"
        and case.complete
        and case.path.suffix != ".txt"
        and not case.variables
        and not case.unknown_values
    ],
    ids=str,
)
def test_the_program_gets_the_words_that_bash_would_pass(case: Case, tmp_path: Path) -> None:
    passed = arguments(case.path, case.extra, tmp_path)
    assert (passed is None) == (case.file in NOT_STARTED)
    if passed is not None:
        words = given(reading(case))
        assert len(words) == len(passed)
        assert all(word is None or word == real for word, real in zip(words, passed, strict=True))


def given(found: Reading) -> list[str | None]:
    """The program's words, without those of a YAML that it opens; None: a word that is not known."""
    words: list[str | None] = []
    for setting in found.settings:
        if setting.place.file.endswith(".yaml"):
            continue
        values = [None if word.unknown else word.text for word in setting.values]
        if setting.joined:
            words.append(None if values[0] is None else f"{setting.spelled}={values[0]}")
        else:
            words += [setting.spelled, *values]
    return words
