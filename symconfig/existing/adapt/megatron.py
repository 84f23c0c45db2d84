"""Megatron-LM's options with a plan's degrees, batch and switches in them, in whatever file they stand."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from symconfig.errors import InputError
from symconfig.existing.adapt import launcher
from symconfig.existing.adapt.draft import Draft, Progress, apart, why_apart
from symconfig.existing.adapt.goal import Goal, Wish, having, wishes
from symconfig.existing.adapt.mending import mended, repairs
from symconfig.existing.adapt.outcome import NO_PLACE, Flaw, Unplaced
from symconfig.existing.adapt.same import check
from symconfig.existing.adapt.ways import change, granted
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run
from symconfig.formats.megatron import DEGREES
from symconfig.formats.megatron_run import DECIDED, FAMILIES, STAGES, Family
from symconfig.plans.plan import Plan

DEEPEP = {"--moe-enable-deepep", "deepep", "hybridep"}  # options and values that need the package deep_ep
# What a checkpoint's files are cut by: another value of one of these, and files by rank cannot be read.
LAYOUT = (*(DEGREES[name] for name in ("tp", "ep", "etp")), *STAGES)
_ROUNDS = 4  # one option's default may depend on another that was changed
_MOST = 200  # changes, of which a configuration needs some twenty: only a defect comes here


def adapt(draft: Draft, plan: Plan) -> Progress:
    """Return the progress with the plan's options in the script, the GPUs in its launcher, and the variables that it
    must export.

    What cannot be written is listed as unplaced; all of it, without any change, where runs of one program differ.
    Option families with a value that could not be read are left alone. Raises InputError where the model or the
    sequence length is not the plan's.
    """
    goal, reading = Goal.of(plan, draft.reading), draft.reading
    hidden = goal.hidden(reading)
    names = goal.known(reading, hidden)
    check(names, plan)
    differing = goal.differing(names, reading.world.gpus or goal.gpus)
    blocked = [family for family in FAMILIES if any(dest in family.dests for dest, _ in hidden)]
    progress = Progress(
        draft,
        unplaced=tuple(dict.fromkeys(unplaced for _, unplaced in hidden)),
        notes=tuple(
            f"{item.place}: not understood: {item.what}, which {item.why}; what it may give is not looked at."
            for item in reading.unread
            if item.matters
        ),
    )
    if apart(reading, goal.table):
        for wish in wishes(names, goal.wanted, differing):
            progress = progress.lacking(Unplaced(wish.option, wish.now, why_apart(reading), names.place(wish.dest)))
        return progress
    for _ in range(_ROUNDS):
        progress = _options(progress, goal, [family for family in differing if family not in blocked])
        reading = progress.draft.reading
        before, differing = differing, goal.differing(goal.known(reading, hidden), goal.gpus)
        if not differing or differing == before:
            break
    progress = _make_reshardable(progress, goal, goal.names(draft.reading))
    progress = launcher.variables(launcher.numbers(progress, plan), plan)
    if DEEPEP & _words(goal.settings) and not DEEPEP & _words(draft.reading.settings):
        progress = progress.noted("The plan needs the package deep_ep on every node, which was not needed before.")
    return _checked(progress, goal, [family for family in differing if family not in blocked])


def _words(settings: Sequence[Setting]) -> set[str]:
    return {word for setting in settings for word in (setting.name, *setting.texts)}


def audited(progress: Progress, original: Reading, plan: Plan) -> tuple[Progress, tuple[Flaw, ...]]:
    """Return the progress with errors of the audit repaired where changing one option does, and the errors left.

    A repair must keep the plan's model, and may make no further option family differ from the plan.
    """
    goal = Goal.of(plan, original)
    apart = _other_meanings(progress.draft, goal)

    def sound(draft: Draft) -> bool:
        try:
            check(goal.known(draft.reading, goal.hidden(draft.reading)), plan)
        except InputError:
            return False
        return _other_meanings(draft, goal) <= apart

    return mended(progress, plan, original, lambda now, finding: repairs(now, goal, finding), sound)


def original(reading: Reading, plan: Plan) -> Run:
    """Return the run that the configuration describes; where values could not be read, the plan's stand in.

    Raises InputError.
    """
    goal = Goal.of(plan, reading)
    return goal.meaning(goal.known(reading, goal.hidden(reading)), reading.world.gpus or goal.gpus)


def _other_meanings(draft: Draft, goal: Goal) -> set[Family]:
    """Return the option families that differ from the plan.

    Values that could not be read are taken to be the plan's.
    """
    reading = draft.reading
    return set(goal.differing(goal.known(reading, goal.hidden(reading)), goal.gpus))


def _make_reshardable(progress: Progress, goal: Goal, before: Namespace) -> Progress:
    """Return the progress with checkpoint options that allow loading in another layout.

    Return it unchanged where the layout is the same. Also unchanged where the run neither saves nor loads. Otherwise
    the format torch becomes torch_dist, and switching off parallel saving with the distributed optimizer is removed.
    """
    now = goal.names(progress.draft.reading)
    if all(before[dest] == now[dest] for dest in LAYOUT) or not (now.given("save") or now.given("load")):
        return progress
    if now["ckpt_format"] == "torch" and not now["use_megatron_fsdp"]:
        why = "the format torch has a file for every rank of one layout, and torch_dist is read in any"
        progress = _set_companion(progress, goal, before, "ckpt_format", ("torch_dist",), why)
    if now["ckpt_fully_parallel_save"] is False and now["use_distributed_optimizer"]:
        why = "without parallel saving the distributed optimizer's state cannot be read in another layout"
        progress = _set_companion(progress, goal, before, "ckpt_fully_parallel_save", None, why)
    return progress


def _set_companion(
    progress: Progress, goal: Goal, before: Namespace, dest: str, values: tuple[str, ...] | None, why: str
) -> Progress:
    """Return the progress with an option that is given set to `values` (None: removed).

    Return it unchanged where it is not given. Listed as unplaced where it cannot be written. before: the options before
    all changes. why: the reason, as a clause.
    """
    names = goal.names(progress.draft.reading)
    if (setting := having(names, dest)) is None:
        return progress
    wish = Wish(dest, setting.name, values)
    after = granted(progress.draft, names, wish)
    if after is None:
        return progress.lacking(Unplaced(wish.option, wish.now, why, setting.place))
    return progress.went(after, change(wish, setting, before, goal.names(after.reading), why))


def _option(goal: Goal, family: Family) -> str:
    """Return the name of the family's first option."""
    dest = family.dests[0]
    return next((name for name, flag in goal.table.flags.items() if flag.dest == dest), dest)


def _options(progress: Progress, goal: Goal, families: Collection[Family]) -> Progress:
    """Return the progress with each differing option of the families changed, one by one, each in the files as they are
    then.

    An option that cannot be written, or that unread text may give already, is listed as unplaced and not tried again.
    """
    before, refused = goal.names(progress.draft.reading), set[Wish]()
    for _ in range(_MOST):
        names = goal.names(progress.draft.reading)
        wish = next((each for each in wishes(names, goal.wanted, families) if each not in refused), None)
        if wish is None:
            break
        setting = having(names, wish.dest)
        item = next((item for item in progress.draft.reading.unread if item.options and setting is None), None)
        hidden = None if item is None else f"{item.what}, which {item.why}, may give it already ({item.place})"
        after = granted(progress.draft, names, wish, goal.wanted) if hidden is None else None
        if after is None:
            refused.add(wish)
            place = None if setting is None else setting.place
            why = hidden or _why_unplaced(setting, progress.draft.reading)
            progress = progress.lacking(Unplaced(wish.option, wish.now, why, place))
        else:
            progress = progress.went(after, change(wish, setting, before, goal.names(after.reading)))
            progress = _note_detached(progress, setting, having(goal.names(after.reading), wish.dest))
            progress = _record_side_changes(progress, goal, wish, names, before)
    return progress


def _record_side_changes(progress: Progress, goal: Goal, wish: Wish, was: Namespace, before: Namespace) -> Progress:
    """Return the progress with a record of each other decided option that changed along with `wish`, through a shared
    variable.

    was: the options before this change; before: those before all changes.
    """
    now = goal.names(progress.draft.reading)
    for dest in sorted(DECIDED - {wish.dest}):
        old, new = having(was, dest), having(now, dest)
        if (old and old.texts) != (new and new.texts):
            option, values = (new.name, tuple(new.texts)) if new is not None else (old.name if old else dest, None)
            made = change(Wish(dest, option, values), old, before, now)
            progress = progress.went(progress.draft, made)
    return progress


def _note_detached(progress: Progress, was: Setting | None, now: Setting | None) -> Progress:
    """Return the progress with a note if the option had its value by a variable and now has a literal one."""
    if was is None or now is None or _variables(now):
        return progress
    names = _variables(was)
    if names:
        return progress.noted(
            f"{now.place}: {now.spelled} does not follow ${names[0]} any more, which other words of "
            "the script have as well and which keeps its value."
        )
    return progress


def _variables(setting: Setting) -> list[str]:
    """Return, for each part of the option's values that comes through variables, the name of the outermost one."""
    return [piece.variables[0] for word in setting.values for piece in word.pieces if piece.variables]


def _why_unplaced(setting: Setting | None, reading: Reading) -> str:
    """Return why an option cannot be written, as a clause to follow "because". setting: None: it is not given."""
    if setting is None:
        return NO_PLACE
    for word in setting.values:
        for piece in word.pieces:
            if piece.place is None and piece.variables:
                return f"its value comes through ${piece.variables[-1]}, which is set outside of what can be edited"
    return "to write it there would change something else as well"


def _checked(progress: Progress, goal: Goal, families: Collection[Family]) -> Progress:
    """Return the progress with an unplaced entry for each of `families`, which still differ, unless one of its options
    has one.
    """
    lacking = {item.option for item in progress.unplaced}
    for family in families:
        options = [setting for setting in goal.settings if goal.dest(setting) in family.dests]
        names = {name for name, flag in goal.table.flags.items() if flag.dest in family.dests}
        if lacking & names:
            continue
        names_now = goal.names(progress.draft.reading)
        there = next((each for dest in family.dests if (each := having(names_now, dest)) is not None), None)
        if options:
            now = options[0].text
            progress = progress.lacking(
                Unplaced(
                    options[0].name,
                    now,
                    "all options together still mean something else",
                    None if there is None else there.place,
                )
            )
        elif there is not None:
            progress = progress.lacking(
                Unplaced(there.name, None, "with it all options together still mean something else", there.place)
            )
        elif not progress.unplaced:  # else it follows from what was not placed
            progress = progress.lacking(
                Unplaced(_option(goal, family), "as the plan has it", "it follows from other options here")
            )
    return progress
