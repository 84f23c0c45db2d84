"""Whether a run of a new plan can go on from what a run of an old plan saved: the rules of rules.yaml, evaluated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from symconfig.checkpoint.changes import closes, found
from symconfig.checkpoint.folder import Checkpoint
from symconfig.checkpoint.kinds import Kind, between, named
from symconfig.checkpoint.supposed import supposed
from symconfig.checkpoint.table import Rule, StepRow, table
from symconfig.checkpoint.verdict import Loadable, Reason, Step, Verdict, worst
from symconfig.plan import Plan

ORDER = ("old", "between", "new")
ONE_BUCKET = 2**40  # elements: more than any buffer has


def loadable(old: Plan, new: Plan, kind: str | None = None) -> Loadable:
    """What becomes of a checkpoint of `old` in a run of `new`.

    kind: the checkpoint's, as `kinds.kinds` names them; None: what the old plan's rendered files write. Raises
    InputError for a kind that the old plan's framework or release does not have.
    """
    checkpoint = named(kind, old)
    changed = found(old, new)
    rules = [rule for rule in table().rules if _holds(rule, checkpoint, old, new, changed)]
    verdict = worst(rule.verdict for rule in rules)
    otherwise = worst(rule.otherwise or rule.verdict for rule in rules)
    telling = [rule for rule in rules if rule.verdict is verdict or _goes_along(rule, verdict)]
    telling.sort(key=lambda rule: -rule.verdict.rank)
    return Loadable(
        kind=str(checkpoint), verdict=verdict, otherwise=otherwise,
        how=_steps({name for rule in telling for name in rule.how}, old, new),
        otherwise_how=_steps({name for rule in telling for name in rule.otherwise_how}, old, new),
        lost=_lost(telling),
        reasons=tuple(Reason(rule.says.format(changed=_changed(rule, changed)), rule.source) for rule in telling),
    )


def of_folder(checkpoint: Checkpoint, new: Plan, old: Plan | None = None) -> Loadable:
    """The same of a folder that was read. What it says itself counts; what it does not is as in `old`, or without that
    as in `new`."""
    return loadable(supposed(checkpoint, old or new), new, checkpoint.kind)


def _holds(rule: Rule, kind: Kind, old: Plan, new: Plan, changed: Mapping[str, str]) -> bool:
    """The framework's own bounds first: releases of another framework cannot be compared."""
    if kind.format not in rule.formats or (rule.optimizer and kind.optimizer not in rule.optimizer):
        return False
    read = (rule.read_since, rule.read_until)
    if any(read) and "framework" in changed:
        return False
    return (between(old.best.target.version, rule.written_since, rule.written_until)
            and between(new.best.target.version, *read)
            and (not rule.any_of or any(name in changed for name in rule.any_of))
            and all(name in changed for name in rule.all_of)
            and not any(name in changed for name in rule.none_of))


def _goes_along(rule: Rule, verdict: Verdict) -> bool:
    """What a milder rule says still counts beside a worse one, but a conversion does not save what is given up."""
    return verdict is not Verdict.NO and rule.verdict is not Verdict.CONVERTED


def _changed(rule: Rule, changed: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(changed[name] for name in (*rule.any_of, *rule.all_of) if name in changed))


def _lost(rules: Sequence[Rule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(table().lost[name] for rule in rules for name in rule.lost))


def _steps(wanted: Collection[str], old: Plan, new: Plan) -> tuple[Step, ...]:
    """In the order of the runs, and within one in the table's."""
    found = [Step(row.run, row.kind, _filled(row, old, new), row.does)
             for name, rows in table().steps.items() if name in wanted for row in rows
             if between((new if row.run == "new" else old).best.target.version, row.since, row.until)]
    return tuple(sorted(found, key=lambda step: ORDER.index(step.run)))


def _filled(row: StepRow, old: Plan, new: Plan) -> str:
    """JSON has braces of its own, so that what is filled in is in double angles."""
    words = row.words
    words = words.replace("<<old.bucket>>", str(closes(old) or ONE_BUCKET))
    for name, plan in (("old", old), ("new", new)):
        for degree in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp"):
            words = words.replace(f"<<{name}.{degree}>>", str(getattr(plan.best.parallel, degree)))
    return words
