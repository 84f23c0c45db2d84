"""What an audit finds in a configuration, as a run of a plan's job in the plan's release."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.existing.adapt.outcome import Flaw
from symconfig.existing.audit.audit import Audit, audited
from symconfig.existing.audit.configuration import MegatronConfiguration, configuration_of
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.supplied import Supplied
from symconfig.existing.rules.rule import Finding, Severity
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.render import megatron

Key = tuple[str, str | None]  # a finding's rule and field: lines move under an edit


@dataclass(frozen=True, slots=True)
class Inspection:
    """errors, warnings: what the audit finds, in its order; the same rule about the same field once."""

    audit: Audit
    errors: dict[Key, Finding]
    warnings: dict[Key, Finding]

    def new(self, before: Inspection) -> dict[Key, Finding]:
        """Return the warnings that the configuration before had not."""
        return {key: finding for key, finding in self.warnings.items() if key not in before.warnings}

    def flaws(self, before: Inspection) -> tuple[Flaw, ...]:
        """Return the errors, each with whether the configuration before had it."""
        return tuple(Flaw(finding.rule, finding.problem, key in before.errors) for key, finding in self.errors.items())


def inspect(reading: Reading, plan: Plan, gpus: int | None = None) -> Inspection:
    """Audit a configuration with the plan's model, cluster, release and margin of memory. gpus: None: the plan's.

    The release counts as one that nobody has said, so that options of a fork are judged as an audit without it does.
    """
    options = BACKENDS[plan.best.target.backend].told_by is Medium.OPTIONS
    stated = Supplied(
        model=plan.model,
        gpus=gpus or plan.best.parallel.world_size,
        seq_length=plan.best.batch.seq_length,
        vocab_size=plan.model.vocab_size,
        megatron_version=megatron.version(plan) if options else None,
    )
    configuration = configuration_of(reading, stated)
    if isinstance(configuration, MegatronConfiguration):
        configuration.version_given = False
    done = audited(configuration, stated, plan.cluster, plan.job.limits, plan=False)
    return Inspection(done, _by_key(done, "error"), _by_key(done, "warning"))


def _by_key(done: Audit, severity: Severity) -> dict[Key, Finding]:
    by_key: dict[Key, Finding] = {}
    for finding in done.findings:
        if finding.severity == severity:
            by_key.setdefault((finding.rule, finding.problem.field), finding)
    return by_key
