"""Files of several plans in one folder: for several numbers of nodes, or for two kinds of GPUs.

Each has a folder of its own; the launch.sh above them takes the one that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symconfig.format import json_text
from symconfig.install import VERSION
from symconfig.plans.mixed import Host, MixedPlan
from symconfig.plans.plan import Plan
from symconfig.render import named, shared, sources
from symconfig.render.files import ENDING, File, Files
from symconfig.render.fill import filled
from symconfig.render.manifest import manifest
from symconfig.render.target import LAUNCH, split
from symconfig.resources import data_dir


def node_folder(nodes: int) -> str:
    """Return the name of the folder with the plan for this number of nodes."""
    return f"nodes-{nodes}"


def above(plans: Sequence[tuple[int, Plan]], launchers: Sequence[str], advice: Sequence[str] = ()) -> list[File]:
    """Return launch.sh, which starts the plan for the nodes found, and sbatch.sh if Slurm is among the launchers.
    plans: (number of nodes, plan), largest first. Other launchers are ignored. advice: sentences on saving, for the
    comments of launch.sh. Raises as `sources` and `Target.files`.
    """
    plan, counts = plans[0][1], [count for count, _ in plans]
    values = {"plan": plan, "nodes": shared.nodes(plan), "counts": counts, "advice": advice}
    made = filled((data_dir("templates") / "fallback",), ("launch.sh.j2",), values)
    for launcher in launchers:
        if split(launcher)[0] == "slurm":
            (source,) = sources(None, [launcher], None)
            inner = source.variables  # those of exactly the plan's nodes
            ranged = replace(source, variables=lambda *of, inner=inner: {**inner(*of), "least": counts[-1]})
            made += ranged.files(plan, Files(tuple(made)))
    return made


PLAN = "mixed.json"
_OF_KIND = (LAUNCH, "megatron_args.txt")  # of a target's files, those that say nothing of the whole plan


def files(plan: MixedPlan, section: str) -> Files:
    """Return all files of a plan with two kinds of GPU: mixed.json, launch.sh and REPORT.md for both, a folder for each
    kind with its launch.sh and megatron_args.txt, and manifest.json. section: the end of REPORT.md. Raises
    InfeasibleError for what Megatron-LM cannot express.
    """
    made = []
    for host in plan.best.hosts:
        own = named("megatron").files(plan.of(host))
        made += [
            File(f"{stage_folder(host)}/{item.path}", item.text, item.executable)
            for item in own
            if item.path in _OF_KIND
        ]
    folders = (data_dir("templates") / "mixed", data_dir("templates") / "shared")
    values = {
        "plan": plan,
        "best": plan.best.candidate,
        "hosts": plan.best.hosts,
        "folders": [(host, stage_folder(host)) for host in plan.best.hosts],
        "section": section,
        "version": VERSION,
    }
    above = filled(folders, (f"{LAUNCH}{ENDING}", f"REPORT.md{ENDING}"), values)
    done = Files((File(PLAN, json_text(plan.to_dict())), *above, *made))
    return Files((*done, manifest(done, "megatron", (), None)))


def stage_folder(host: Host) -> str:
    """Return the name of the folder for one kind's nodes."""
    return f"stages-{host.stages.text.replace(' to ', '-')}"
