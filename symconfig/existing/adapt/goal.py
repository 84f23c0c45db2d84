"""What a plan wants of Megatron-LM's options, and what a configuration says instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from symconfig.errors import InputError
from symconfig.existing.adapt.families import lacks, unequal
from symconfig.existing.adapt.outcome import Unplaced
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.existing.recover.words import settings
from symconfig.formats.megatron_run import DECIDED, FAMILIES, Family
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron


@dataclass(frozen=True, slots=True)
class Hidden:
    """A decided destination whose value in the configuration is not known, and what to do about it by hand."""

    dest: str
    unplaced: Unplaced


@dataclass(frozen=True, slots=True)
class Goal:
    """settings: the plan's own options."""

    plan: Plan
    table: flags.FlagTable
    settings: tuple[Setting, ...]

    @classmethod
    def of(cls, plan: Plan, reading: Reading) -> Self:
        table = flags.flags(megatron.version(plan))
        words = [word for group in megatron.groups(plan) for option in group.options for word in option]
        return cls(plan, table, settings(words, "plan.json"))

    @property
    def wanted(self) -> Namespace:
        return Namespace(self.settings, self.table)

    @property
    def gpus(self) -> int:
        return self.plan.best.parallel.world_size

    def names(self, reading: Reading) -> Namespace:
        return Namespace(reading.settings, self.table)

    def dest(self, setting: Setting) -> str | None:
        flag = self.table.flags.get(setting.name)
        return None if flag is None else flag.dest

    def known(self, reading: Reading, hidden: Sequence[Hidden]) -> Namespace:
        """Return the configuration with the plan's own words in place of what is hidden."""
        dests = {item.dest for item in hidden}
        mine = [setting for setting in reading.settings if self.dest(setting) not in dests]
        return Namespace([*mine, *(each for each in self.settings if self.dest(each) in dests)], self.table)

    def hidden(self, reading: Reading) -> tuple[Hidden, ...]:
        """Return the decided options without a known value, and those that something not understood may give as
        well.
        """
        hidden = []
        for setting in reading.settings:
            flag = self.table.flags.get(setting.name)
            if flag is None or flag.dest not in DECIDED:
                continue
            why = setting.unknown
            if why is None and flag.kind == "store" and (not setting.values or flag.nargs in ("+", "*")):
                why = _cut_off(setting, reading)
            if why is not None:
                hidden.append(self._hidden(flag.dest, setting.name, f"its value {why}", setting.place))
        for item in reading.unread:
            hidden += [
                self._hidden(self.table.flags[name].dest, name, f"what gives it here {item.why}", item.place)
                for name in (item.what.replace("=", " ").split() if item.matters else ())
                if name in self.table.flags and self.table.flags[name].dest in DECIDED
            ]
        return tuple(hidden)

    def _hidden(self, dest: str, name: str, why: str, place: Place) -> Hidden:
        goal = self.wanted.setting(dest)
        if goal is None:
            return Hidden(dest, Unplaced(name, None, why, place))
        return Hidden(dest, Unplaced(goal.name, goal.text, why, place))

    def differing(self, names: Namespace, gpus: int) -> list[Family]:
        """Return the families that mean something else than the plan. Where the options mean nothing together, as
        degrees that do not divide the GPUs, only their values can be compared.
        """
        goal = self.meaning(self.wanted, self.gpus)
        try:
            have = self.meaning(names, gpus)
        except InputError:
            return unequal(names, self.wanted)
        return [
            family
            for family in FAMILIES
            if family.meaning(have) != family.meaning(goal)
            or sum(names[dest] is True for dest in family.exclusive.split()) > 1
            or lacks(names, self.wanted, family)
        ]

    def meaning(self, names: Namespace, gpus: int) -> Run:
        stated = Supplied(
            model=self.plan.model, seq_length=self.plan.best.batch.seq_length, vocab_size=self.plan.model.vocab_size
        )
        return run(names, gpus, self.plan.cluster, stated)


def _cut_off(setting: Setting, reading: Reading) -> str | None:
    """Say why something stands between the option's last known word and the next one, that may be values of it."""
    text = next((text for text in reading.texts if text.file == setting.place.file), None)
    for item in reading.unread if text is not None else ():
        behind = item.place.file == setting.place.file and item.place.start >= setting.place.end
        if item.matters and behind and text is not None:
            between = text.data[setting.place.end : item.place.start]
            if not between.replace(b"\\", b"").strip(b" \t\r\n\"'"):
                return item.why
    return None
