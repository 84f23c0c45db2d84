"""Import this to have run some commands: what they imported and read is there for every fork of this process."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from symconfig.cli.main import main

EXAMPLE = Path(__file__).resolve().parent.parent / "docs" / "examples" / "train_13b.sh"
COMMANDS = (
    "plan --model llama2-7b --cluster a100-80gb --gpus 8 --global-batch-size 64 --seq-length 4096 --out run",
    "plan --model llama2-7b --cluster a100-80gb --gpus 8 --global-batch-size 64 --backend deepspeed",
    "replan run --global-batch-size 128 --at-step 100",
    f"audit {EXAMPLE} --cluster h200 --no-plan",
    "explain run --timeline",
    "verify --help",
    "adapt --help",
    "partition --help",
)


def _run_all(quiet: io.StringIO) -> None:
    for command in COMMANDS:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), contextlib.suppress(SystemExit):
            main(command.split())


with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    _run_all(io.StringIO())
