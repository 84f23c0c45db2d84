"""Submits a folder's sbatch.sh to a real Slurm on this machine, waits for the job, and prints its log.

Usage: python in_slurm.py NODES, in the folder. Slurm's node names mean nothing to this machine's network, so LAUNCH, a
variable of sbatch.sh, is a script that meets at 127.0.0.1 and goes on with launch.sh.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SLURM = Path(__file__).resolve().parents[1] / "formats" / "slurm"


def main() -> int:
    sys.path.insert(0, str(SLURM))
    cluster: Any = importlib.import_module("cluster")
    folder, nodes = Path.cwd(), int(sys.argv[1])
    here = folder / "here.sh"
    here.write_text('MASTER_ADDR=127.0.0.1 exec bash launch.sh "$@"\n')
    with cluster.cluster(nodes, nodes) as slurm:
        path = os.pathsep.join([os.environ["PATH"], *slurm.paths])  # Python first: that of the ranks
        done = subprocess.run(
            ["sbatch", "--wait", "--output=job.log", "sbatch.sh"],
            cwd=folder,
            env={**slurm.variables, "PATH": path, "LAUNCH": str(here)},
        )
    log = folder / "job.log"
    print(log.read_text(errors="replace") if log.exists() else "no log")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
