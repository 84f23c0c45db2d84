"""How commands end that are never run, and scripts that are too much work: what hangs on them is not known."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.existing.launch.bash.read import Bash, read_bash
from symconfig.existing.launch.text import Text


def read(script: str) -> Bash:
    return read_bash(Text("run.sh", script.encode()))


def degree(script: str) -> str | None:
    """What the script gives --tp; None where that is not known, and the reading says so."""
    bash = read(f"{script}\ntorchrun train.py --x 1 --tp $TP")
    values = next(setting.values for setting in bash.reading.settings if setting.name == "--tp")
    if values and values[0].unknown is None:
        assert len(values) == 1
        return values[0].text
    assert values or not bash.reading.complete
    return None


@pytest.mark.parametrize(
    "script",
    [
        "TP=1; grep -q x file && TP=8",
        "TP=1; cd /nothere || TP=8",
        "TP=1; mkdir out || TP=8",
        "TP=1; echo y | grep -q x && TP=8",
        "TP=1; python -c 'import apex' && TP=8",
        "TP=1; nvidia-smi && TP=8 || TP=4",
        "TP=1; grep -q x file && grep -q y file && TP=8",
        "TP=1; grep -q x file || grep -q y file || TP=8",
        "TP=1; ! grep -q x file && TP=8",
        "TP=1; ! cd /nothere || TP=8",
        "TP=1; hash nvcc && TP=8",
        "TP=1; which nvcc && TP=8",
        "TP=1; cat file && TP=8",
        "TP=1; printf -v TP '%s' 4",
        "TP=1; source nothere.sh || TP=8",
        "TP=1; eval 'grep -q x file' && TP=8",
        "TP=1; (grep -q x file) && TP=8",
        "TP=1; { cd out; grep -q x file; } && TP=8",
        "TP=1; if expr $X : 'a'; then TP=8; fi",
        "TP=1; if X=$(grep x file); then TP=8; fi",
        "TP=1; X=$(nvidia-smi) || TP=8",
        "TP=1; f() { hostname | grep -q zz; }; f && TP=8",
        "TP=1; f() { [ -f file ] && return 1; return 0; }; f && TP=8",
        "TP=1; f() { if [ -f file ]; then return 0; else return 1; fi; }; f && TP=8",
        "TP=1; f() { grep -q x file; return $?; }; f && TP=8",
        "TP=1; f() { grep -q x file; return; }; f && TP=8",
        "for TP in 1 2; do grep -q x file && break; done",
        "TP=$([ -f file ] && echo 8 || echo 4)",
        "TP=$(if [ -f file ]; then echo 8; else echo 4; fi)",
        "TP=$(grep -q x file && echo 8)",
    ],
)
def test_what_hangs_on_a_program_is_not_known(script: str) -> None:
    assert degree(script) is None


@pytest.mark.parametrize(
    "script",
    [
        "TP=8; grep -q x file && OTHER=1",
        "grep -q x file && TP=8 || TP=8",
        "cd out || exit 1; TP=8",
        "cd out && TP=8",
        "TP=8; grep -q x file || { echo missing; exit 1; }",
        "mkdir -p out && cd out && TP=8",
        "TP=1; X=$(true) && TP=8",
        "TP=8; X=$(false) && TP=1",
        "f() { true; }; f && TP=8",
        "f() { return 1; }; f || TP=8",
        "TP=1; eval true && TP=8",
        "TP=1; expr 2 - 1 && TP=8",
        "TP=8; expr 1 - 1 && TP=1",
        "TP=1; true && false || TP=8",
        "TP=8; false && true && TP=1",
        "TP=$(cd out && echo 8)",
        "TP=$([ -f file ] && echo 8 || echo 8)",
        "TP=$(python3 -c 'import torch_npu' >/dev/null 2>&1 && echo 16 || echo 8)",
    ],
)
def test_what_does_not_is_known(script: str) -> None:
    assert degree(script) == "8"


@pytest.mark.parametrize(
    ("condition", "what"),
    [("$A =~ (b|c)", "a regular expression"), ("$A =~ ^\\(b", "a regular expression"), ("($A = b)", "a group")],
)
def test_a_group_of_a_regular_expression_is_no_group_of_conditions(condition: str, what: str) -> None:
    bash = read(f"A=b; TP=1\nif [[ {condition} ]]; then TP=8; fi\ntorchrun train.py --tp $TP")
    assert f"which depends on {what}" in str(bash.reading.settings[0].values[0].unknown)


def test_what_stands_behind_a_program_is_what_the_script_does() -> None:
    bash = read("python prepare.py && export TP=8 && cd job && torchrun train.py --x 1 --tp $TP")
    assert bash.reading.complete
    assert [value.text for value in bash.reading.settings[-1].values] == ["8"]


def test_what_runs_after_a_failure_is_not_sure_to_run() -> None:
    bash = read("python prepare.py || torchrun train.py --x 1")
    assert [item.why.split(":")[0] for item in bash.reading.unread if item.matters] == [
        "runs under a condition that is not known"
    ]


def test_a_program_that_is_looked_for_is_the_launcher() -> None:
    bash = read("$(which torchrun) --nproc_per_node 8 train.py --x 1")
    assert bash.reading.world.gpus == 8


TRAIN = "python train.py --deepspeed ds.json\n"
A = "a" * 120
NUMBERED = "case $U{0} in a) v{0}=1;; b) v{0}=2;; esac\n"
SCRIPTS = {
    "unknown cases": "".join(map(NUMBERED.format, range(4000))),
    "arms of a case": f"case $U in {' '.join(f'a{i}) v{i}=1;;' for i in range(3000))} esac\n",
    "patterns": f"x={A}\n" + "y=${x##*a*a*a*a*b}\n" * 10_000,
    "doublings": "x=aaaaaaaa\n" + "x=$x$x\n" * 40,
    "loops in loops": "for i in {1..9999}; do for j in {1..9999}; do x=$j; done; done\n",
    "an array that grows": "for i in {1..9999}; do A+=($i); done\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_much_work_is_left_at_its_place(name: str) -> None:
    script = f"#!/bin/bash\n{TRAIN}{SCRIPTS[name]}"
    start = time.process_time()
    reading = read_bash(Text("run.sh", script.encode())).reading
    assert time.process_time() - start < 5.0
    (left,) = [item for item in reading.unread if "work" in item.why]
    assert left.why == "is too much work to follow: what comes after it was not read"
    assert left.place.line > 2


def test_a_script_of_many_ordinary_lines_is_read_to_its_end() -> None:
    lines = "".join(f"A{i}=$((8 * {i} + 1))\necho line ${{A{i}##*/}} of ${{A{i}/1/2}}\n" for i in range(300))
    asked = "".join(map(NUMBERED.format, range(40)))
    reading = read_bash(Text("run.sh", f"{lines}{asked}{TRAIN}".encode())).reading
    assert not [item for item in reading.unread if "work" in item.why]


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    lines = (f"touch {mark}", f"A=$(touch {mark}; echo 1)", f"`touch {mark}`", f"echo x > {mark}", f"eval touch {mark}")
    script = "\n".join((*lines, "python t.py --x $A"))
    read_bash(Text("run.sh", script.encode()), folder=tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "script",
    [
        "f() { f; f; }\nf\npython train.py --x 1",
        "A=" + "${A:-" * 500 + "}" * 500 + "\npython train.py --x $A",
        "A=$((" + "(" * 5000 + "1" + ")" * 5000 + "))\npython train.py --x $A",
        "(" * 3000 + "\npython train.py --x 1",
        "A=" + "{a,b}" * 30 + "\npython train.py --x {a,b}" + "{a,b}" * 30,
        "A=" + "a" * 5000 + "\nB=${A//*a*b/c}\npython train.py --x $B",
        "eval eval eval " + "'" * 101 + "\npython train.py --x 1",
        "if [ $X = 1 ]; then A=1; fi\n" * 2000 + "python train.py --x $A",
    ],
)
def test_hostile_scripts_end_soon(script: str) -> None:
    start = time.process_time()
    with suppress(InputError):
        reading = read_bash(Text("run.sh", script.encode())).reading
        assert not reading.complete or "--x" in [setting.name for setting in reading.settings]
    assert time.process_time() - start < 5
