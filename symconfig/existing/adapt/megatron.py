"""Megatron-LM's options with a plan's degrees, batch and switches in them, in whatever file they stand."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from symconfig.errors import InputError
from symconfig.existing.adapt import launcher
from symconfig.existing.adapt.draft import (
    ELSE_TOO,
    NO_PLACE,
    Change,
    Draft,
    Option,
    Progress,
    Unplaced,
    with_option,
)
from symconfig.existing.adapt.same import check
from symconfig.existing.launch.reading import Reading, Setting, settings
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run, Supplied
from symconfig.formats.megatron_run import DECIDED, FAMILIES, Family
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron

DEEPEP = {"--moe-enable-deepep", "deepep", "hybridep"}  # options and values that need the package deep_ep
FORMAT, SHARDED = "ckpt_format", "fsdp_dtensor"  # the format of checkpoints that Megatron-FSDP has alone
_ROUNDS = 4  # one option's default may depend on another that was changed
_MOST = 200  # changes, of which a configuration needs some twenty: only a defect comes here
_MOST_ANCHORS = 6  # places that are tried for a new option
# Decided destinations whose values in a configuration are not known, each with what to do about it by hand.
Hidden = tuple[tuple[str, Unplaced], ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """An option and the values that it should have; (): a switch, None: it should be removed. dest: the parser's
    destination.
    """

    dest: str
    option: str
    values: tuple[str, ...] | None

    @property
    def now(self) -> str | None:
        return None if self.values is None else " ".join(self.values)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a plan wants of Megatron-LM's options. table: the options of its release. settings: the options that the
    plan renders.
    """

    plan: Plan
    table: flags.FlagTable
    settings: tuple[Setting, ...]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(plan, flags.flags(megatron.version(plan)), settings(megatron.arguments(plan), "plan.json"))

    @property
    def wanted(self) -> Namespace:
        return Namespace(self.settings, self.table)

    @property
    def gpus(self) -> int:
        return self.plan.best.configuration.world_size

    def names(self, reading: Reading) -> Namespace:
        return Namespace(reading.settings, self.table)

    def dest(self, setting: Setting) -> str | None:
        """Return the parser's destination of an option; None for an option that the release does not have."""
        flag = self.table.flags.get(setting.name)
        return None if flag is None else flag.dest

    def known(self, reading: Reading, hidden: Hidden) -> Namespace:
        """Return the configuration's options, with the plan's own in place of the hidden ones."""
        dests = {dest for dest, _ in hidden}
        mine = [setting for setting in reading.settings if self.dest(setting) not in dests]
        return Namespace([*mine, *(each for each in self.settings if self.dest(each) in dests)], self.table)

    def hidden(self, reading: Reading) -> Hidden:
        """Return argparse's destinations that a plan decides and whose value is not known, with what to set by hand.

        These are options with an unknown value or one cut off by unread text, and options that unread text may give.
        """
        found: list[tuple[str, Unplaced]] = []

        def hide(name: str, why: str, place: Place) -> None:
            dest = self.table.flags[name].dest
            goal = self.wanted.setting(dest)
            now = Unplaced(name, None, why, place) if goal is None else Unplaced(goal.name, goal.text, why, place)
            found.append((dest, now))

        for setting in reading.settings:
            flag = self.table.flags.get(setting.name)
            if flag is None or flag.dest not in DECIDED:
                continue
            why = setting.unknown
            if why is None and flag.kind == "store" and (not setting.values or flag.nargs in ("+", "*")):
                why = _cut_off(setting, reading)
            if why is not None:
                hide(setting.name, f"its value {why}", setting.place)
        for item in reading.unread:
            for name in item.what.replace("=", " ").split() if item.matters else ():
                if name in self.table.flags and self.table.flags[name].dest in DECIDED:
                    hide(name, f"what gives it here {item.why}", item.place)
        return tuple(found)

    def differing(self, names: Namespace, gpus: int) -> list[Family]:
        """Return the families (fields of a plan that options set together) whose values differ from the plan's.

        names: the configuration's options, run on `gpus` GPUs. Also families with two switches that exclude each other.
        If the options are invalid together, those with options to change.
        """
        wanted = self.wanted
        goal = self.meaning(wanted, self.gpus)
        try:
            have = self.meaning(names, gpus)
        except InputError:
            return [family for family in FAMILIES if any(_wishes_of_family(names, wanted, family))]
        return [
            family
            for family in FAMILIES
            if family.meaning(have.configuration) != family.meaning(goal.configuration)
            or sum(names[dest] is True for dest in family.exclusive.split()) > 1
            or (not family.fields and any(_wishes_of_family(names, wanted, family)))
        ]

    def meaning(self, names: Namespace, gpus: int) -> Run:
        """Return the run that these options describe, of the plan's model on its cluster. Raises InputError."""
        model, length = self.plan.model, self.plan.best.configuration.seq_length
        stated = Supplied(model=model, seq_length=length, vocab_size=model.vocab_size)
        return run(names, gpus, self.plan.cluster, stated)


def _cut_off(setting: Setting, reading: Reading) -> str | None:
    """Return why text directly behind an option, which may hold values of it, was not read; None without such text."""
    data = {text.file: text.data for text in reading.texts}.get(setting.place.file, b"")
    for item in reading.unread:
        behind = item.place.file == setting.place.file and item.place.start >= setting.place.end
        if item.matters and behind and not data[setting.place.end : item.place.start].strip(b" \t\r\n\"'\\"):
            return item.why
    return None


def _having(names: Namespace, dest: str) -> Setting | None:
    """Return the last option given for this destination, even if its value could not be read; None if there is none."""
    return names.setting(dest) or names.written.get(dest)


def _wishes_of_family(now: Namespace, wanted: Namespace, family: Family) -> Iterator[Wish]:
    """Yield a Wish for each option to set, change or remove so that one family has the values of `wanted`.

    Options of a family without fields (kernels) are never removed.
    """
    for dest in family.dests:
        if now[dest] == wanted[dest]:
            continue
        goal, have = wanted.setting(dest), _having(now, dest)
        if goal is not None:
            yield Wish(dest, goal.name, goal.texts)
        elif have is not None and family.fields:
            yield Wish(dest, have.name, None)


def wishes(now: Namespace, wanted: Namespace, families: Collection[Family]) -> list[Wish]:
    """Return the options to set in these families, in this order: those given with another value, those missing, those
    to remove.

    The format of checkpoints is added if it is given and Megatron-FSDP, which has one of its own, comes or goes.
    """
    needed = [wish for family in FAMILIES if family in families for wish in _wishes_of_family(now, wanted, family)]
    sharded = wanted.setting(FORMAT)
    if sharded is not None and now.given(FORMAT) and (now[FORMAT] == SHARDED) != (wanted[FORMAT] == SHARDED):
        needed.append(Wish(FORMAT, sharded.name, sharded.texts))
    return sorted(needed, key=lambda wish: (wish.values is None, _having(now, wish.dest) is None))


def adapt(draft: Draft, plan: Plan) -> Progress:
    """Return the progress with the plan's options in the script, its GPUs in the launcher, and its variables exported.

    Repeated, as one option's default may depend on another. What cannot be written, read or made equal is listed as
    unplaced. Raises InputError if model or length are not the plan's.
    """
    goal, reading = Goal.of(plan), draft.reading
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
    for _ in range(_ROUNDS):
        progress = _options(progress, goal, [family for family in differing if family not in blocked])
        reading = progress.draft.reading
        before, differing = differing, goal.differing(goal.known(reading, hidden), goal.gpus)
        if not differing or differing == before:
            break
    progress = launcher.with_variables(launcher.with_gpus(progress, plan), plan)
    needed, had = (
        {word for each in some for word in (each.name, *each.texts)} for some in (goal.settings, draft.reading.settings)
    )
    if DEEPEP & needed and not DEEPEP & had:
        progress = progress.with_note("The plan needs the package deep_ep on every node, which was not needed before.")
    return _with_unequal(progress, goal, [family for family in differing if family not in blocked])


def _options(progress: Progress, goal: Goal, families: Collection[Family]) -> Progress:
    """Return the progress with each differing option of the families changed, one by one, and recorded.

    One that cannot be written, or that unread text may give already, is listed as unplaced. A note says where an option
    no longer follows its variable.
    """
    first, refused = goal.names(progress.draft.reading), set[Wish]()
    for _ in range(_MOST):
        names = goal.names(progress.draft.reading)
        wish = next((each for each in wishes(names, goal.wanted, families) if each not in refused), None)
        if wish is None:
            break
        setting = _having(names, wish.dest)
        item = next((item for item in progress.draft.reading.unread if item.options and setting is None), None)
        after = written(progress.draft, names, wish, goal) if item is None else None
        if after is not None:
            now = goal.names(after.reading)
            progress = progress.with_changes(after, *_changes(wish, names, now, first))
            was, there = _variables(setting), _having(now, wish.dest)
            if was and there is not None and not _variables(there):
                progress = progress.with_note(
                    f"{there.place}: {there.spelled} does not follow ${was[0]} any more, which other words of "
                    "the script have as well and which keeps its value."
                )
            continue
        refused.add(wish)
        why = NO_PLACE if setting is None else ELSE_TOO
        if item is not None:
            why = f"{item.what}, which {item.why}, may give it already ({item.place})"
        progress = progress.with_unplaced(wish.option, wish.now, why, None if setting is None else setting.place)
    return progress


def _variables(setting: Setting | None) -> list[str]:
    """Return, for each part of the option's values that comes through variables, the name of the outermost one."""
    words = () if setting is None else setting.values
    return [piece.variables[0] for word in words for piece in word.pieces if piece.variables]


def _changes(wish: Wish, was: Namespace, now: Namespace, first: Namespace) -> Iterator[Change]:
    """Yield a Change for each option that differs between `was` and `now`, the wish's first.

    Its place is that in `first`, the options before any change; of an added option the place in `now`.
    """
    for dest in (wish.dest, *sorted(DECIDED - {wish.dest})):
        old, new = _having(was, dest), _having(now, dest)
        if (old and old.texts) == (new and new.texts):
            continue
        if old is None and new is not None:
            yield Change(new.name, None, new.text, new.place)
        elif old is not None:
            now_text = None if new is None else new.text
            yield Change(old.name, old.text, now_text, (_having(first, dest) or old).place)


def written(draft: Draft, names: Namespace, wish: Wish, goal: Goal) -> Draft | None:
    """Return the draft with one option as `wish` wants it: added, changed or removed; None if no edit does that.

    Other options may change along with it, as where one variable gives several, if they come to have the plan's values.
    """
    setting, values, known = _having(names, wish.dest), wish.values, goal.table.flags
    if setting is not None and not setting.values:
        values = None  # a switch goes; the option that the plan has instead comes next
    elif setting is not None and values == ():
        return None
    name = wish.option if setting is None else setting.name
    planned = {(each.name, each.texts) for each in goal.settings} | {(name, values)}

    def loses(option: Option) -> bool:
        return option not in planned and option[0] in known and known[option[0]].dest in DECIDED | {wish.dest}

    anchors = _anchors(draft, names, wish)
    return with_option(draft, setting, anchors, name, values, planned.__contains__, loses)


def _anchors(draft: Draft, names: Namespace, wish: Wish) -> Sequence[Setting]:
    """Return the six given options nearest to the wish's in the order of `FAMILIES`, then the configuration's last.

    Options of experts are nearer to each other than to other options, those of the same family nearer than others, and
    those before it nearer than those behind.
    """
    order = {dest: (row, at) for row, family in enumerate(FAMILIES) for at, dest in enumerate(family.dests)}
    row, at = order.get(wish.dest, (len(FAMILIES) - 1, 0))
    expert = re.compile("moe|expert")

    def distance(dest: str) -> tuple[bool, bool, bool, tuple[int, int]]:
        there, index = order[dest]
        behind = (there, index) > (row, at)
        apart = (there - row, index - at) if behind else (row - there, -index)
        return bool(expert.search(dest)) != bool(expert.search(wish.dest)), there != row, behind, apart

    nearest = sorted(order.keys() - {wish.dest}, key=distance)
    anchors = [setting for dest in nearest if (setting := names.setting(dest))]
    return [*anchors[:_MOST_ANCHORS], *draft.reading.settings[-1:]]


def _with_unequal(progress: Progress, goal: Goal, families: Collection[Family]) -> Progress:
    """Return the progress with an unplaced value for each of `families`, which still differ from the plan's in meaning.

    Not for a family of which an option is listed already.
    """
    names, wanted = goal.names(progress.draft.reading), goal.wanted
    why = "all options together still mean something else"
    for family in families:
        listed = (goal.table.flags.get(item.option) for item in progress.unplaced)
        if any(flag is not None and flag.dest in family.dests for flag in listed):
            continue
        planned = next(filter(None, map(wanted.setting, family.dests)), None)
        there = next(filter(None, (_having(names, dest) for dest in family.dests)), None)
        named = planned or there
        option = f"--{family.dests[0].replace('_', '-')}" if named is None else named.name
        now = "as the plan has it" if named is None else None if planned is None else planned.text
        progress = progress.with_unplaced(option, now, why, None if there is None else there.place)
    return progress
