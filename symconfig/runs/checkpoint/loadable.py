"""Whether a run of a new plan can go on from what a run of an old plan saved: the rules of rules.yaml, evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symconfig.frameworks.checkpoint import Kind
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.changes import holding
from symconfig.runs.checkpoint.folder import Checkpoint
from symconfig.runs.checkpoint.kinds import between, named
from symconfig.runs.checkpoint.supposed import supposed
from symconfig.runs.checkpoint.table import Rule, table
from symconfig.runs.checkpoint.verdict import Loadable, Reason, Step, Verdict, worst
from symconfig.runs.checkpoint.way import way


def loadable(old: Plan, new: Plan, kind: str | None = None) -> Loadable:
    """Judge what becomes of a checkpoint of `old` in a run of `new`.

    kind: the checkpoint's, as `kinds.kinds` names them; None: what the old plan's rendered files write. Raises
    InputError for a kind that the old plan's framework or release does not have.
    """
    checkpoint = named(kind, old)
    changed = holding(old, new)
    rules = [rule for rule in table().rules if _holds(rule, checkpoint, old, new, changed)]
    verdict = worst(rule.verdict for rule in rules)
    otherwise = worst(rule.otherwise or rule.verdict for rule in rules)
    telling = sorted((rule for rule in rules if _tells(rule, verdict)), key=lambda rule: -rule.verdict.rank)

    def steps(level: Verdict) -> tuple[Step, ...]:
        wanted = {name for rule in rules for name in _steps(rule, level)}
        return () if level is Verdict.NO else way(checkpoint.format, wanted, old, new)

    return Loadable(
        kind=str(checkpoint),
        verdict=verdict,
        otherwise=otherwise,
        how=steps(verdict),
        otherwise_how=steps(otherwise) if verdict is Verdict.CONVERTED else (),
        lost=_lost(telling),
        reasons=tuple(Reason(rule.says.format(changed=_changed(rule, changed)), rule.source) for rule in telling),
    )


def of_folder(checkpoint: Checkpoint, new: Plan, old: Plan | None = None) -> Loadable:
    """Judge what becomes of a folder that was read. What it says itself counts; what it does not is as in `old`, or
    without that as in `new`."""
    return loadable(supposed(checkpoint, old or new), new, checkpoint.kind)


def _holds(rule: Rule, kind: Kind, old: Plan, new: Plan, changed: Mapping[str, str]) -> bool:
    """Tell whether the rule holds, that between frameworks first.

    Releases of another one cannot be compared with the rule's.
    """
    if kind.format not in rule.formats or (rule.optimizer and kind.optimizer not in rule.optimizer):
        return False
    if "framework" in changed and not rule.across and "framework" not in (*rule.any_of, *rule.all_of):
        return False
    return (
        between(old.best.target.version, rule.written_since, rule.written_until)
        and between(new.best.target.version, rule.read_since, rule.read_until)
        and (not rule.any_of or any(name in changed for name in rule.any_of))
        and all(name in changed for name in rule.all_of)
        and not any(name in changed for name in rule.none_of)
    )


def _steps(rule: Rule, level: Verdict) -> tuple[str, ...]:
    """Return the rule's steps where the answer as a whole is `level`.

    No conversion that saves what is given up, but one without which even that much would not load.
    """
    spared = rule.otherwise is not None and rule.verdict.rank < level.rank and rule.otherwise.rank <= level.rank
    return rule.otherwise_how if spared else rule.how


def _tells(rule: Rule, verdict: Verdict) -> bool:
    """Tell whether a milder rule's words still count with a worse one, but a conversion only where it is done."""
    if verdict in (rule.verdict, Verdict.NO):
        return rule.verdict is verdict
    return rule.otherwise is None or any(name in table().conversions for name in _steps(rule, verdict))


def _changed(rule: Rule, changed: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(changed[name] for name in (*rule.any_of, *rule.all_of) if name in changed))


def _lost(rules: Sequence[Rule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(table().lost[name] for rule in rules for name in rule.lost))
