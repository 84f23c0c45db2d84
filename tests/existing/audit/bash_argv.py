"""What bash itself would pass to the training program: stand-ins for the launchers write down their arguments.

For this repository's own scripts only. Nothing but the stand-ins and a few harmless tools is on the PATH.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

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
