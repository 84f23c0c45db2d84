"""Whether a run of a new plan can go on from what a run of an old plan saved: the rules of rules.yaml, evaluated."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from symconfig.frameworks.checkpoint import Kind
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.changes import closes, holding
from symconfig.runs.checkpoint.folder import Checkpoint
from symconfig.runs.checkpoint.kinds import between, named
from symconfig.runs.checkpoint.supposed import supposed
from symconfig.runs.checkpoint.table import Rule, table
from symconfig.runs.checkpoint.verdict import Loadable, Reason, Step, Verdict, worst


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
        lost=tuple(dict.fromkeys(table().lost[name] for rule in telling for name in rule.lost)),
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


ONE_BUCKET = 2**40  # elements: more than any buffer has
KEPT = ("tp", "pp", "vpp", "ep", "etp", "zero")  # pins with which every rank reads what it wrote
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def way(form: str, wanted: Collection[str], old: Plan, new: Plan) -> tuple[Step, ...]:
    """Return the steps; form: of the checkpoint, a format.

    wanted: conversions and what the new run is told, by name, in any order.
    """
    steps, place = [], "CHECKPOINT"
    for name, conversion in table().conversions.items():
        if name in wanted and form in conversion.reads:
            steps += [
                Step(row.run, row.kind, _filled(row.words, place, old, new), _filled(row.does, place, old, new))
                for row in conversion.rows
                if between(old.best.target.version, row.since, row.until)
            ]
            form, place = conversion.makes, conversion.at
    return (*steps, *_new_run(form, place, wanted, old, new))


def _new_run(form: str, place: str, wanted: Collection[str], old: Plan, new: Plan) -> Iterator[Step]:
    """Yield the options that start the new run: a step for each kind, in which every option is once."""
    tells = table().tells
    options = {name: tells[name] for name in tells if name in wanted and form in tells[name].reads}
    rows = [
        *filter(None, [table().loads.get(form)]),
        *(entry for entry in options.values() if not set(entry.useless_with) & options.keys()),
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        these = [row for row in rows if row.kind == kind]
        words = (_filled(row.words, place, old, new) for row in these)
        if kind == "options":
            words = (option for line in words for option in re.split(r"\s+(?=--)", line))
        does = "; ".join(_filled(row.does, place, old, new) for row in these)
        yield Step("new", kind, " ".join(dict.fromkeys(words)), does)


def _filled(words: str, place: str, old: Plan, new: Plan) -> str:
    """Fill in words; JSON has braces of its own, so that fields are in double angles."""
    words = words.replace("<<from>>", place).replace("<<old.bucket>>", str(closes(old) or ONE_BUCKET))
    words = words.replace("<<old.keep>>", ",".join((*KEPT, *(["layout"] if old.best.options.pipeline_layout else []))))
    for degree in DEGREES:
        words = words.replace(f"<<new.{degree}>>", str(getattr(new.best.parallel, degree)))
    return words
