"""model_config.yaml, read as Megatron-LM's functional tests read it, through Megatron's own parser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from accepting import dry_run
from megatron_checks import Run, answer_each, world_size

RUNNER = Path(__file__).with_name("runner.sh")
PROGRAMS = ("pretrain_gpt.py", "pretrain_hybrid.py")


def run(folder: Path) -> Run:
    said = yaml.load((folder / "model_config.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    lines = "".join(
        f"{name}: {value if isinstance(value, str) else '[' + ' '.join(value) + ']'}\n"
        for name, value in said["MODEL_ARGS"].items()
    )
    args = subprocess.run(
        ["bash", str(RUNNER), "layouts"], input=lines, capture_output=True, text=True, check=True
    ).stdout.split("\0")[:-1]
    command = dry_run(folder, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # a python3 with PyYAML
    own = next(index for index, word in enumerate(command) if Path(word).name in PROGRAMS)
    if command[own + 1 :] != args:
        raise ValueError("launch.sh starts something else")
    return Run(args, world_size(command), said["ENV_VARS"])


answer_each(run)
