"""`symconfig completion`: real shells complete with what it prints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from symconfig.cli.machine import SHELLS
from symconfig.cli.main import main

CASES = {
    "symconfig pl": "plan", "symconfig plan --glo": "--global-batch-size", "symconfig plan --cluster h2": "h200",
    "symconfig plan --model llama2-1": "llama2-13b", "symconfig plan --target transf": "transformers",
    "symconfig list models qwen2.5-7": "qwen2.5-7b", "symconfig audit lau": "launch.sh",
    "symconfig completion fi": "fish",
}  # fmt: skip
BASH = r"""
source ./script
complete=$(complete -p symconfig)
[[ $complete =~ -F\ ([^ ]+) ]]
read -ra COMP_WORDS <<< "$1"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
"${BASH_REMATCH[1]}" symconfig "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = "source ./script; complete -C $argv[1]"
# A terminal with a shell in it: the line is typed, a tab pressed, and the line read again.
ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PROMPT=; fpath=($PWD \$fpath); autoload -Uz compinit; compinit -u -D; echo RE''ADY"
zpty -r -m z line '*READY*'
zpty -n -w z "$1"$'\t'
zpty -r -m z line "*$2*" && print -r -- "$2"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script to complete the name of."""
    room = tmp_path_factory.mktemp("completion")
    (room / "launch.sh").write_text("true\n", encoding="utf-8")
    return room


@pytest.mark.parametrize("line", CASES)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    if not (made := folder / f"{shell}.made").exists():
        assert main(["completion", shell]) == 0
        made.write_text(capsys.readouterr().out, encoding="utf-8")
    shutil.copy(made, folder / ("_symconfig" if shell == "zsh" else "script"))
    words = {
        "bash": ("bash", "--noprofile", "--norc", "-c", BASH, "bash", line),
        "fish": ("fish", "--no-config", "-c", FISH, line),
        "zsh": ("zsh", "-f", "-c", ZSH, "zsh", line, CASES[line]),
    }[shell]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    offered = [offer.partition("\t")[0].strip() for offer in ended.stdout.splitlines()]
    assert CASES[line] in offered, ended.stdout + ended.stderr


def test_without_shtab_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "completion needs shtab" in " ".join(capsys.readouterr().err.split())
