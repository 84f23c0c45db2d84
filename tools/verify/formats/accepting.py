"""What every accept.py has in common: the folders of its arguments, one JSON line for each.

The driver runs it with the format's own Python and this folder on its path; nothing of symconfig is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# What the parser understood, in the words of `tools/verify/formats/words.py`.
Values = dict[str, Any]
# What Megatron-LM, and who passes its options on, calls what a plan calls otherwise.
MEGATRON = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "dp": "data_parallel_size", "micro": "micro_batch_size",
    "global": "global_batch_size", "world": "world_size", "num_hidden_layers": "num_layers",
    "first_stage_layers": "decoder_first_pipeline_num_layers", "last_stage_layers": "decoder_last_pipeline_num_layers",
    "pipeline_layout": "pipeline_model_parallel_layout",
    "account_for_embedding": "account_for_embedding_in_pipeline_split",
    "account_for_loss": "account_for_loss_in_pipeline_split",
}  # fmt: skip
# Megatron-FSDP's names of ZeRO's stages.
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def called(words: str, holder: Any, names: Mapping[str, str] = MEGATRON) -> Values:
    """What an object, or a dict, has under the names of these words."""
    of = holder.__getitem__ if isinstance(holder, dict) else lambda name: getattr(holder, name)
    return {word: of(names.get(word, word)) for word in words.split()}


def ranks(nodes: int, gpus: int) -> Values:
    """Of a run on so many nodes with so many GPUs each."""
    return {"world": nodes * gpus, "nodes": nodes, "gpus_per_node": gpus}


def of_torchrun(words: Sequence[str]) -> tuple[int, int]:
    """Nodes, and GPUs of each, of a command of torchrun's."""
    nodes, gpus = (int(words[words.index(name) + 1]) for name in ("--nnodes", "--nproc-per-node"))
    return nodes, gpus


def lora(r: int, alpha: float, dropout: float, targets: Iterable[str], *, quantised: bool = False) -> Values:
    """Adapters, beside frozen weights that are quantised or not."""
    said = {"adapter": "qlora" if quantised else "lora", "lora_r": r, "lora_alpha": alpha, "lora_dropout": dropout}
    return {**said, "lora_targets": sorted(targets)}


def answer(accept: Callable[[Path], Values]) -> None:
    """Let `accept` read each folder. It returns what the parser understood, and raises what the parser raises."""
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # frameworks print what they like, below Python too
    with os.fdopen(out, "w", encoding="utf-8") as lines:
        for name in sys.argv[1:]:
            said, values = [], {}
            try:
                values = accept(Path(name))
            except (Exception, SystemExit) as error:  # a command line's parser exits
                frames = traceback.extract_tb(error.__traceback__, limit=-1)  # some frameworks switch them off
                where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in frames)
                said = [f"{type(error).__name__}: {error}{where}"]
            line = json.dumps({"folder": name, "accepted": not said, "said": said, "values": values})
            print(line, file=lines, flush=True)


def dry_run(folder: Path, script_name: str = "launch.sh", **variables: str) -> list[str]:
    """The words of the command that a script of the folder would run."""
    environment = {**os.environ, **variables, "DRY_RUN": "1"}
    done = subprocess.run(["bash", str(folder / script_name)], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{script_name}: {done.stderr.strip()}")
    # Each line is one word, quoted for bash: bash itself takes the quotes off again.
    script = "".join(f"printf '%s\\0' {line}\n" for line in done.stdout.splitlines())
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


def started(folder: Path, program: str, **variables: str) -> tuple[list[str], dict[str, str]]:
    """The words after `program`, and its environment, when the folder's launch.sh starts it.

    A stand-in of that name notes them; SCRIPT is an empty file, for launch.sh that look for one.
    """
    with tempfile.TemporaryDirectory() as scratch:
        noted, script = Path(scratch) / "noted", Path(scratch) / "train.py"
        script.touch()
        stand_in = Path(scratch) / program
        stand_in.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"open({str(noted)!r}, 'w').write(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
        )
        stand_in.chmod(0o755)
        path = f"{scratch}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "SCRIPT": str(script), **variables, "PATH": path}
        done = subprocess.run(["bash", str(folder / "launch.sh")], env=environment, capture_output=True, text=True)
        if done.returncode or not noted.exists():
            raise RuntimeError(f"launch.sh: {done.stderr.strip()}")
        words, seen = json.loads(noted.read_text())
        return words, seen
