"""Hostile scripts: nothing is executed, and too much work is left at its place, within seconds."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.existing.launch.bash.read import read_bash
from symconfig.existing.launch.text import Text

TRAIN = "python train.py --deepspeed ds.json\n"
A = "a" * 120
NUMBERED = "case $U{0} in a) v{0}=1;; b) v{0}=2;; esac\n"
SCRIPTS = {
    "nested replacements": f"x={A}\ny={'${x//a/' * 10}q{'}' * 10}\n",
    "replacements in turn": "x=aaaaaaaaaa\n" + "x=${x//a/${x}a}\n" * 10,
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
