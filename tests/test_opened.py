"""Files that a person names: only regular ones are read, nothing is waited for, and one helper opens them all."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.resources import content, opened

PACKAGE = Path(__file__).resolve().parent.parent / "symconfig"
# Modules that read in another way, and what.
ALLOWED = {
    "resources.py": "has the helper",
    **dict.fromkeys(
        (
            "descriptor/hub.py", "frameworks/backend.py", "frameworks/megatron/environment.py", "render/deepspeed.py",
            "render/launchers.py", "report/page.py", "solve/usual.py",
        ),
        "data of the package, of a checkout or of Hugging Face's cache",
    ),
    **dict.fromkeys(
        (
            "cli/main.py", "existing/adapt/files.py", "verify/runners/forks.py", "verify/runners/megatron_runner.py",
        ),
        "streams, locks and files that it writes itself",
    ),
    **dict.fromkeys(
        (
            "measured/gpu/kernels.py", "verify/deepspeed.py", "verify/runners/deepspeed_runner.py",
            "verify/megatron_source.py", "verify/shell.py",
        ),
        "files that it was given by itself, or that it has seen to be regular",
    ),
    **dict.fromkeys(
        (
            "render/manifest.py", "runs/checkpoint/folder.py", "runs/checkpoint/folder_deepspeed.py",
            "runs/checkpoint/folder_megatron.py",
        ),
        "files of a folder that it has seen to be regular",
    ),
}  # fmt: skip
READS = ("read_text", "read_bytes", "open", "fdopen")


def _reads(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            yield f"{path.name}:{node.lineno}"
        elif isinstance(function, ast.Attribute) and function.attr in READS:
            # `state.open(name)` asks, and opens no file: a file's own method is given a mode.
            mode = isinstance(node.args[0], ast.Constant) if node.args else True
            if function.attr != "open" or mode or ast.unparse(function.value) == "os":
                yield f"{path.name}:{node.lineno}"


def test_files_are_opened_in_one_way() -> None:
    others = {
        place: found
        for path in PACKAGE.rglob("*.py")
        if (place := path.relative_to(PACKAGE).as_posix()) not in ALLOWED and (found := list(_reads(path)))
    }
    assert others == {}, "symconfig.resources opens what a person names"


def test_no_module_is_excused_that_reads_nothing() -> None:
    assert [place for place in ALLOWED if not list(_reads(PACKAGE / place))] == []


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """What is named, and is no regular file."""
    made = {name: tmp_path / f"{name}.yaml" for name in ("pipe", "socket", "folder", "loop", "huge")}
    os.mkfifo(made["pipe"])
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(made["socket"]))
        made["folder"].mkdir()
        made["loop"].symlink_to(made["loop"])
        with made["huge"].open("wb") as stream:
            stream.truncate(1 << 40)
        yield {**made, "device": Path("/dev/zero"), "missing": tmp_path / "none.yaml"}


def test_what_is_no_regular_file_is_said(odd: dict[str, Path]) -> None:
    said = {
        "pipe": "this is a named pipe", "socket": "cannot be read|this is a socket", "folder": "this is a folder",
        "loop": "cannot be read", "huge": "too large", "device": "this is a device",
        "missing": "there is no such file",
    }  # fmt: skip
    for name, path in odd.items():
        with pytest.raises(InputError, match=said[name]):
            content(path, 1 << 20)
    with pytest.raises(InputError, match="cannot be read"), opened("a\0b"):
        pass


COMMANDS = (
    ("plan",),
    ("plan", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "8", "--model"),
    ("plan", "--model", "llama2-7b", "--gpus", "8", "--global-batch-size", "8", "--cluster"),
    ("explain",),
    ("replan",),
    ("audit",),
    ("calibrate",),
    ("sweep", "--out", "none.csv"),
    ("validate",),
    ("import",),
    ("partition", "--cluster", "h100", "--gpus", "8", "--program"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_refuses_them_at_once(odd: dict[str, Path], command: tuple[str, ...]) -> None:
    """In one process, since each would wait for ever."""
    code = "from symconfig.cli.main import main\nfor path in sys.argv[2:]: print(main([*sys.argv[1].split(), path]))"
    names = [str(path) for name, path in odd.items() if name != "folder"]
    words = [sys.executable, "-c", f"import sys\n{code}", " ".join(command), *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["2"] * len(names), done.stderr
