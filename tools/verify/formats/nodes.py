"""What a launcher starts on its nodes: its commands are run with stand-ins for the programs behind, which note it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from accepting import Values
from accepting import ranks as ranks_of

_NOTES = """#!{python}
import json, os, sys
name = os.path.join({folder!r}, str(os.getpid()))
open(name + ".part", "w").write(json.dumps([sys.argv[1:], dict(os.environ)]))
os.rename(name + ".part", name)
"""


@dataclass(frozen=True)
class Stage:
    """A place to run things in. `variables`: the environment with the stand-ins first on the PATH, a MEGATRON_PATH with
    the script that launch.sh looks for, and a checkpoint to start from that is complete."""

    folder: Path
    variables: dict[str, str]

    def run(self, command: Sequence[str], cwd: Path | None = None, **more: str) -> str:
        """Its output. Raises RuntimeError where it fails."""
        done = subprocess.run(command, cwd=cwd, env={**self.variables, **more}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{Path(command[0]).name}: {done.stderr.strip()[-800:]}")
        return done.stdout

    def notes(self) -> list[tuple[list[str], dict[str, str]]]:
        """The words and variables of every program that was started since the last call."""
        found = [path for path in (self.folder / "notes").iterdir() if not path.suffix]
        said = [json.loads(path.read_text()) for path in found]
        for path in found:
            path.unlink()
        return [(words, variables) for words, variables in said]


@contextmanager
def stage(*programs: str) -> Iterator[Stage]:
    """With stand-ins for these programs. The environment has no variables by which a launcher tells nodes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("bin", "notes", "megatron", "pretrained"):
            (folder / name).mkdir()
        (folder / "pretrained" / "latest_checkpointed_iteration.txt").touch()
        for program in ("pretrain_gpt.py", "pretrain_hybrid.py"):
            (folder / "megatron" / program).touch()
        for program in programs:
            path = folder / "bin" / program
            path.write_text(_NOTES.format(python=sys.executable, folder=str(folder / "notes")))
            path.chmod(0o755)
        path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_", "RAY_"))}
        # The stand-ins have no packages that a plan needs, and a look for these would be noted as a start.
        places = {"MEGATRON_PATH": str(folder / "megatron"), "PRETRAINED_CHECKPOINT": str(folder / "pretrained")}
        variables = {"PATH": path, "SKIP_PREFLIGHT": "1", **places}
        yield Stage(folder, {**kept, **variables})


def by_node(notes: Sequence[tuple[list[str], Mapping[str, str]]], ranks: Sequence[int]) -> Values:
    """From what torchrun, or `accelerate launch`, was given on each of these nodes."""
    options = [_of_torchrun(words) for words, _ in notes]
    assert sorted(int(each["--node-rank"]) for each in options) == sorted(ranks), options
    masters = {
        (each["--master-addr"], each["--master-port"], each["--nnodes"], each["--nproc-per-node"]) for each in options
    }
    assert len(masters) == 1, masters  # they meet in one place
    ((_, _, nodes, gpus),) = masters
    return ranks_of(int(nodes), int(gpus))


def _of_torchrun(words: Sequence[str]) -> dict[str, str]:
    """Options as torchrun names them."""
    if words[0] != "launch":
        return dict(zip(words[0:10:2], words[1:10:2], strict=True))
    given = dict(zip(words[1:13:2], words[2:13:2], strict=True))
    nodes = int(given["--num_machines"])
    return {
        "--nnodes": str(nodes),
        "--nproc-per-node": str(int(given["--num_processes"]) // nodes),
        "--node-rank": given["--machine_rank"],
        "--master-addr": given["--main_process_ip"],
        "--master-port": given["--main_process_port"],
    }


def by_rank(notes: Sequence[tuple[list[str], Mapping[str, str]]], node: int, gpus: int) -> Values:
    """From the variables of the processes of one node, the node-th of its job."""
    found = sorted((int(each["RANK"]), int(each["LOCAL_RANK"])) for _, each in notes)
    assert found == [(node * gpus + local, local) for local in range(gpus)], found
    shared = {(each["WORLD_SIZE"], each["MASTER_ADDR"], each["MASTER_PORT"]) for _, each in notes}
    assert len(shared) == 1, shared
    assert len({tuple(words) for words, _ in notes}) == 1  # all run the same program
    world = int(next(iter(shared))[0])
    return ranks_of(world // gpus, gpus)
