"""Examples of the rules that an audit asks beside a framework's: whole launches, audited on H100 GPUs."""

from __future__ import annotations

from collections.abc import Callable

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster
from symconfig.existing.audit.audit import Audit, audit
from symconfig.existing.audit.judge import PHASES
from symconfig.existing.launch.bash.read import read_bash
from symconfig.existing.launch.files import FileLookup
from symconfig.existing.launch.follow import followed
from symconfig.existing.launch.reading import Reading, settings
from symconfig.existing.launch.text import Text
from symconfig.existing.recover.run import Supplied
from symconfig.existing.rules import rl
from symconfig.existing.rules.rule import BASE, Finding, Rule
from tests.existing.rules.examples import FILE

CLUSTER = "h100"
Completed = Callable[[Audit, ClusterDescriptor, Limits], Audit]


def findings(rule: Rule[object], completed: Completed = lambda done, *_: done) -> list[Finding]:
    """Return what an audit says of the rule on its example, for the GPUs that the rule is about. completed: judges the
    phases of reinforcement learning, too (`runs.rl.stated`).
    """
    cluster, limits = load_cluster(CLUSTER), Limits()
    whole = completed(audit(reading(rule), Supplied(gpus=rule.gpus), cluster, limits, plan=False), cluster, limits)
    return [finding for finding in whole.findings if finding.rule == rule.name]


def reading(rule: Rule[object]) -> Reading:
    """Read an example: options stand for themselves; a command of Megatron-LM's is a script of one line, with the
    options of the base behind it.
    """
    if rule.example.startswith("--"):
        return Reading("bash", (Text(FILE, rule.example.encode()),), tuple(settings(rule.example.split(), FILE)))
    if rule in (*rl.RULES, *PHASES):  # whole scripts
        return followed(read_bash(Text(FILE, f"{rule.example}\n".encode())).reading, FileLookup(None, {}))
    command = rule.example.rstrip()
    end = rule.example[len(command) :] or "\n"
    return read_bash(Text(FILE, f"{command} {BASE}{end}".encode())).reading
