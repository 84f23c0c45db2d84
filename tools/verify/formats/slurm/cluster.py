"""A real Slurm on one machine: a controller, and as many slurmd as nodes are to run, each with GPUs that are none.

Its programs are those on the PATH, or, on Debian and its kin, those of its packages, unpacked beside the environments
of the other formats: nothing is installed, and no right is needed but that to fetch packages.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libmunge2", "libhwloc15")
UNPACKED = Path(__file__).resolve().parents[4] / ".venv-formats" / "slurm"
START_S = 30
GPUS = 8
# Without accounts, munge and cgroups: they are about who may do what, and no part of reading a job.
CONFIG = """
ClusterName=symconfig
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
{plugins}
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=100000
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=8 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Commands of a running cluster."""

    def __init__(self, root: Path | None, folder: Path) -> None:
        self.folder = folder
        libraries = [str(root / "usr/lib/x86_64-linux-gnu"), str(plugins(root))] if root else []
        self.paths = [str(root / "usr" / name) for name in ("bin", "sbin")] if root else []
        self.variables = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join([*self.paths, os.environ["PATH"]]),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        }

    def run(self, *command: str, cwd: Path | None = None, **more: str) -> str:
        """Its output. Raises RuntimeError where it fails."""
        done = subprocess.run(command, env={**self.variables, **more}, cwd=cwd, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.strip()}")
        return done.stdout

    def program(self, name: str) -> str:
        """slurmd, which Debian calls slurmd-wlm."""
        for each in (f"{name}-wlm", name):
            found = shutil.which(each, path=f"{self.variables['PATH']}{os.pathsep}/usr/sbin")
            if found:
                return found
        raise RuntimeError(f"there is no {name}")

    def job(self, number: str) -> dict[str, str]:
        """What Slurm understood of a job."""
        words = self.run("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


def plugins(root: Path | None) -> Path:
    return (root or Path("/")) / "usr/lib/x86_64-linux-gnu/slurm-wlm"


def unpacked() -> Path | None:
    """Where Slurm's programs lie; None: on the PATH. Raises RuntimeError where they are not to be had."""
    if shutil.which("slurmctld"):
        return None
    root = UNPACKED / "root"
    if not (UNPACKED / ".made").exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise RuntimeError("Slurm is not installed, and this is no Debian whose packages could be unpacked")
        UNPACKED.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=UNPACKED, check=True, capture_output=True)
        for package in UNPACKED.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
        (UNPACKED / ".made").touch()
    return root


def _free_ports(count: int) -> int:
    """The first of so many that nobody listens on."""
    for first in range(20000, 60000, count):
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise RuntimeError("no free ports")


@contextmanager
def cluster(nodes: int, running: int) -> Iterator[Slurm]:
    """A cluster of `nodes` nodes, of which the first `running` can run something; the others are known by name."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as started:
        folder, root, port = Path(scratch), unpacked(), _free_ports(nodes + 1)
        slurm = Slurm(root, folder)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        where = f"PluginDir={plugins(root)}" if root else ""
        (folder / "slurm.conf").write_text(
            CONFIG.format(
                host=socket.gethostname().split(".")[0],
                user=user,
                plugins=where,
                port=port,
                folder=folder,
                last=nodes - 1,
                first_port=port + 1,
                last_port=port + nodes,
            )
        )
        (folder / "gres.conf").write_text(f"Name=gpu Count={GPUS}\n")
        (folder / "state").mkdir()
        _start(started, slurm, "slurmctld", "-c", "-D")
        names = [f"n{index}" for index in range(running)]
        for name in names:
            (folder / f"spool-{name}").mkdir()
            _start(started, slurm, "slurmd", "-D", "-N", name, "-d", slurm.program("slurmstepd"))
        _wait(slurm, names)
        # slurmctld 22.05 without a database forgets the GPUs of slurm.conf, and takes them from here
        slurm.run("scontrol", "update", f"nodename=n[0-{nodes - 1}]", f"gres=gpu:{GPUS}")
        yield slurm


def _start(started: ExitStack, slurm: Slurm, name: str, *options: str) -> None:
    log = started.enter_context((slurm.folder / f"{name}-{'-'.join(options[1:3])}.log").open("w"))
    process = subprocess.Popen([slurm.program(name), *options], env=slurm.variables, stdout=log, stderr=log)
    started.callback(process.wait, 30)
    started.callback(process.terminate)


def _wait(slurm: Slurm, names: list[str]) -> None:
    """Until every node has said that it is there."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            idle = slurm.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()
        except RuntimeError:  # the controller is not up yet
            idle = []
        if set(names) <= set(idle):
            return
        time.sleep(0.2)
    raise RuntimeError(f"Slurm did not start in {START_S} s")
