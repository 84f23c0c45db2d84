"""How far a configuration is on its way to a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from symconfig.existing.adapt.draft import Draft
from symconfig.existing.adapt.outcome import Change, Unplaced


@dataclass(frozen=True, slots=True)
class Progress:
    """draft: with every change so far in it."""

    draft: Draft
    changes: tuple[Change, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    notes: tuple[str, ...] = ()

    def went(self, draft: Draft, change: Change) -> Progress:
        return replace(self, draft=draft, changes=(*self.changes, change))

    def lacking(self, unplaced: Unplaced) -> Progress:
        if any((item.option, item.now) == (unplaced.option, unplaced.now) for item in self.unplaced):
            return self
        return replace(self, unplaced=(*self.unplaced, unplaced))

    def noted(self, note: str) -> Progress:
        return self if note in self.notes else replace(self, notes=(*self.notes, note))
