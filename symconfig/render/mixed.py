"""Files of a plan over two kinds of GPUs: each kind's own launch.sh, and the one above them that takes a node's."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.format import count, json_text, seconds
from symconfig.install import VERSION
from symconfig.plans.mixed import Alone, Host, MixedPlan
from symconfig.render import named, summary
from symconfig.render.files import ENDING, File, Files
from symconfig.render.fill import filled
from symconfig.render.manifest import manifest
from symconfig.render.megatron import NAME
from symconfig.render.summary import Row
from symconfig.render.target import LAUNCH
from symconfig.resources import data_dir

PLAN = "mixed.json"
_OF_KIND = (LAUNCH, "megatron_args.txt")  # of a target's files, those that say nothing of the whole plan


def files(plan: MixedPlan) -> Files:
    """Return all files of a plan with two kinds of GPU: a folder for each kind, above them launch.sh, the report, plan
    and manifest.
    """
    made = []
    for host in plan.best.hosts:
        own = named(NAME).files(plan.of(host))
        made += [
            File(f"{folder(host)}/{item.path}", item.text, item.executable) for item in own if item.path in _OF_KIND
        ]
    folders = (data_dir("templates") / "mixed", data_dir("templates") / "shared")
    values = {
        "plan": plan,
        "best": plan.best.candidate,
        "hosts": plan.best.hosts,
        "folders": [(host, folder(host)) for host in plan.best.hosts],
        "kinds": [_row(host) for host in plan.best.hosts],
        "sentences": tuple(verdict(plan)),
        "summary": {**summary.tables(plan.best.candidate), "time": summary.time(plan.of(plan.best.hosts[0]))},
        "version": VERSION,
    }
    above = filled(folders, (f"{LAUNCH}{ENDING}", f"REPORT.md{ENDING}"), values)
    done = Files((File(PLAN, json_text(plan.to_dict())), *above, *made))
    return Files((*done, manifest(done, NAME, (), None)))


def folder(host: Host) -> str:
    """Return the name of the folder for one kind's nodes."""
    return f"stages-{host.stages.text.replace(' to ', '-')}"


def verdict(plan: MixedPlan) -> Iterator[str]:
    """Yield sentences comparing both kinds together with each alone, and on how they were searched."""
    yield " ".join(f"{_alone(each)}." for each in plan.alone)
    faster, gain = plan.faster, plan.gain
    if gain is None or faster is None:
        yield "Only both kinds together run it."
    elif plan.pays:
        yield f"Both kinds together are {gain:.2f} times as fast as {faster.share.cluster.name} alone."
    else:
        yield f"**It does not pay**: {faster.share.cluster.name} alone is {1 / gain:.2f} times as fast as both kinds."
    yield (
        f"Searched: {count(plan.candidates)} candidates, of which {count(plan.feasible)} fit, weighed on a machine of "
        f"both kinds' mean rates; the best of them were laid over both in either order, {count(plan.laid)} times. "
        "What was not laid over them may be faster: nothing is proved of it."
    )


def _alone(each: Alone) -> str:
    name = f"{each.share.cluster.name} alone ({count(each.share.gpus)} GPUs)"
    if each.best is None:
        return f"{name} has no plan: {each.why}"
    return f"{name} takes {seconds(each.best.predicted.step_s)} s"


def _row(host: Host) -> Row:
    """Return the row of one kind: its nodes, stages, layers, GPUs, memory and limit."""
    layers = " ".join(map(str, host.layers))
    held, limit = summary.gib(host.predicted.device_bytes), summary.gib(host.usable_bytes)
    return Row(
        f"{host.share.cluster.gpu.product} ({host.share.cluster.name})",
        (host.nodes.text, host.stages.text, layers, count(host.share.gpus), held, limit),
    )
