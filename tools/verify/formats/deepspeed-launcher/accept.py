"""DeepSpeed's own launcher, from the hostfile to the processes of a node.

deepspeed.sh starts it, pdsh is a stand-in: the command for every host is what pdsh would hand to ssh. That of the last
host is then run, as ssh would, and DeepSpeed's launcher of one node starts launch.sh for every GPU there.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path
from unittest import mock

from accepting import Values, answer
from deepspeed.launcher import multinode_runner, runner
from nodes import Stage, by_rank, stage

VALUE = "a b,c=d"  # of a variable that every host must be told, and of an argument


def _remote(running: Stage, folder: Path) -> tuple[list[str], list[str]]:
    """The hosts, and the command for them, that the launcher gives pdsh for what deepspeed.sh gives it."""
    running.run(
        ["bash", str(folder / "deepspeed.sh"), "--x", VALUE], folder, NCCL_DEBUG=VALUE, SAVE=VALUE, DATA_SPLIT=VALUE
    )
    ((words, variables),) = running.notes()
    started: list[list[str]] = []

    class Started:
        returncode = 0

        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            started.append(command)

        def wait(self) -> None:
            """At once."""

    with (
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(runner, "DEEPSPEED_ENVIRONMENT_NAME", variables["DS_ENV_FILE"]),
        mock.patch.object(runner.subprocess, "check_call"),
        mock.patch.object(multinode_runner.shutil, "which", return_value="/usr/bin/pdsh"),
        mock.patch.object(runner.subprocess, "Popen", Started),
    ):
        runner.main(words)
    (command,) = started
    if command[0] != "pdsh":
        return ["localhost"], command
    return command[command.index("-w") + 1].split(","), command[command.index("-w") + 2 :]


def accept(folder: Path) -> Values:
    with stage("deepspeed", "python3") as running:
        hosts, command = _remote(running, folder)
        (world,) = re.findall(r"--world_info=(\S+)", " ".join(command))
        slots = json.loads(base64.urlsafe_b64decode(world))
        assert list(slots) == hosts
        (gpus,) = {len(each) for each in slots.values()}
        last = len(hosts) - 1
        if hosts == ["localhost"]:
            running.run(command, folder, PER_RANK="1")
        else:  # the words are joined by blanks and read by a shell there
            shell = " ".join(command).replace("%n", str(last))
            running.run(["bash", "-c", shell], Path("/"))
        notes = running.notes()
        values = by_rank(notes, last, gpus)
    assert all(words[-2:] == ["--x", VALUE] for words, _ in notes)
    if hosts != ["localhost"]:
        told = "DATA_SPLIT" if "DATA_SPLIT" in (folder / "deepspeed.sh").read_text() else "SAVE"
        assert {variables[told] for _, variables in notes} == {VALUE}
    assert sys.executable in command or hosts == ["localhost"]
    return {**values, "nodes": len(hosts)}


answer(accept)
