"""megatron.yaml through Megatron's own loader of --yaml-cfg, by way of the pretrain_yaml.py beside it."""

from __future__ import annotations

from pathlib import Path

from accepting import dry_run
from megatron_checks import Run, answer_each, world_size

from symconfig.verify import shell


def run(folder: Path) -> Run:
    command = dry_run(folder)
    own = command.index(str(folder / "pretrain_yaml.py"))
    return Run(
        command[own + 2 :], world_size(command), shell.dry_run(folder, "launch.sh", 60.0).exported, program=command[own]
    )


answer_each(run)
