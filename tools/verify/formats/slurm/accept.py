"""A real Slurm: what it understands of sbatch.sh, and, for up to four nodes, what its tasks start."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from accepting import Values, answer
from cluster import Slurm, cluster
from nodes import by_node, stage

MOST_NODES = 4  # that are run for real, as many slurmd on this machine
DONE_S = 60


def _submitted(slurm: Slurm, folder: Path, *options: str, **variables: str) -> str:
    """The number of the job. The first option of sbatch --test-only would say no: most nodes exist by name only."""
    return slurm.run("sbatch", "--parsable", *options, "sbatch.sh", "--x", "a b", cwd=folder, **variables).strip()


def _ended(slurm: Slurm, number: str) -> None:
    """Wait for a job. Raises RuntimeError where it fails."""
    end = time.monotonic() + DONE_S
    while time.monotonic() < end:
        found = slurm.job(number)
        if found["JobState"] not in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"):
            if found["JobState"] != "COMPLETED":
                log = Path(found["StdOut"])
                raise RuntimeError(f"{found['JobState']}: {log.read_text()[-800:] if log.exists() else ''}")
            return
        time.sleep(0.2)
    slurm.run("scancel", number)
    raise RuntimeError(f"the job did not end in {DONE_S} s: {found['JobState']}, {found['Reason']}")


def accept(folder: Path) -> Values:
    number = _submitted(SLURM, folder, "--hold")
    asked = SLURM.job(number)
    SLURM.run("scancel", number)
    nodes = int(asked["NumNodes"].split("-")[0])
    gpus = int(asked["TresPerNode"].rpartition(":")[2])
    assert asked["NtasksPerN:B:S:C"].startswith("1:"), asked
    assert asked["OverSubscribe"] == "NO", asked  # --exclusive
    values = {"nodes": nodes, "gpus_per_node": gpus, "world": nodes * gpus}
    if nodes <= MOST_NODES:
        with stage("torchrun", "accelerate") as running:
            path = os.pathsep.join([running.variables["PATH"].split(os.pathsep)[0], SLURM.variables["PATH"]])
            given = {
                name: running.variables[name] for name in ("MEGATRON_PATH", "SKIP_PREFLIGHT", "PRETRAINED_CHECKPOINT")
            }
            number = _submitted(SLURM, folder, PATH=path, **given)
            _ended(SLURM, number)
            notes = running.notes()
        assert by_node(notes, range(nodes)) == values
        assert all(words[-2:] == ["--x", "a b"] for words, _ in notes)
        assert {words[7] for words, _ in notes} == {"n0"}  # the first node is where all meet
    return values


with cluster(128, MOST_NODES) as SLURM:
    answer(accept)
sys.exit()
