"""Which dims of a program's tensors are one and the same: a union-find whose members may turn out to be products.

An axis stands for a dim of some size. Operators relate axes: those of one loop are united; where one tensor has
(heads x channels) in a single dim and another has them apart, the single one is *factored*. What is not factored is a
leaf, and leaves are the dims of the program. Axes of equal size that nothing relates stay apart.

Two axes of one tensor, or two loops of one operator, are *distinct* and are never united: where a relation asks for
that all the same (keys are a sequence, seen by the queries of the same sequence), the two are *parallel* instead: as
long as each other and factored alike, but two loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

Group = tuple[int, ...]  # axes that one dim is made of, outermost first; empty for a dim of size 1


@dataclass(slots=True)
class Axes:
    """Hold axes as a union-find forest. parents, lengths: of each axis. apart: axes with which it must not be united.
    alike: axes parallel to it.
    """

    parents: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    factors: list[Group] = field(default_factory=list)  # of a root: what it is a product of, or empty
    apart: list[set[int]] = field(default_factory=list)
    alike: list[set[int]] = field(default_factory=list)

    def new(self, length: int) -> int:
        """Return a new axis of this length, related to no other."""
        self.parents.append(len(self.parents))
        self.lengths.append(length)
        self.factors.append(())
        self.apart.append(set())
        self.alike.append(set())
        return len(self.parents) - 1

    def root(self, axis: int) -> int:
        while self.parents[axis] != axis:
            self.parents[axis] = axis = self.parents[self.parents[axis]]
        return axis

    def leaves(self, group: Iterable[int]) -> Group:
        leaves: list[int] = []
        for axis in group:
            root = self.root(axis)
            leaves.extend(self.leaves(self.factors[root]) if self.factors[root] else (root,))
        return tuple(leaves)

    def size(self, group: Iterable[int]) -> int:
        return prod(self.lengths[self.root(axis)] for axis in group)

    def sizes(self, group: Iterable[int]) -> list[int]:
        return [self.lengths[leaf] for leaf in self.leaves(group)]

    def copy(self, group: Group) -> Group:
        """Return new axes, one per leaf of the group and parallel to it."""
        result = tuple(self.new(length) for length in self.sizes(group))
        for one, other in zip(self.leaves(group), result, strict=True):
            self._parallel(one, other)
        return result

    def distinct(self, groups: Sequence[Group]) -> None:
        """Forbid uniting any two different leaves (axes without factors) of the groups, also two of the same group."""
        leaves = [leaf for group in groups for leaf in self.leaves(group)]
        for position, leaf in enumerate(leaves):
            for other in leaves[:position]:
                if leaf != other:
                    self.apart[leaf].add(other)
                    self.apart[other].add(leaf)

    def factor(self, axis: int, lengths: Sequence[int]) -> Group:
        """Factor a leaf, and all leaves parallel to it (other loops of the same length, always factored alike), into
        new axes of these lengths, outermost first, and return its factors, which are distinct from each other and from
        all that the leaf is distinct from.

        Asserts that the axis is not factored yet and that the product of the lengths is its length.
        """
        leaf = self.root(axis)
        assert not self.factors[leaf]
        assert prod(lengths) == self.lengths[leaf]
        self.factors[leaf] = made = tuple(self.new(length) for length in lengths)
        self.distinct([(part,) for part in made])
        for other in {self.root(other) for other in self.apart[leaf]}:
            for part in made:
                self.apart[part].add(other)
                self.apart[other].add(part)
        for other in {self.root(other) for other in self.alike[leaf]} - {leaf}:
            theirs = self.factors[other] or self.factor(other, lengths)
            if len(theirs) == len(made):
                for one, two in zip(made, theirs, strict=True):
                    self._parallel(one, two)
        return made

    def regroup(self, group: Group, lengths: Sequence[int]) -> list[Group] | None:
        """Return the group's axes as groups of these sizes, factoring leaves where needed; size 1 gives an empty group.

        None, without a change, if the borders of old and new dims cross (3 x 4 as 4 x 3).
        """
        if not _aligned(self.sizes(group), lengths):
            return None
        rest = list(self.leaves(group))
        result: list[Group] = []
        for length in lengths:
            taken: list[int] = []
            while length > 1:
                leaf = rest.pop(0)
                if length % self.lengths[leaf]:
                    first, second = self.factor(leaf, (length, self.lengths[leaf] // length))
                    # What is parallel to this one within the same group has been factored with it.
                    leaf, rest = first, [second, *self.leaves(rest)]
                taken.append(leaf)
                length //= self.lengths[leaf]
            result.append(tuple(taken))
        return result

    def relate(self, one: Group, other: Group) -> bool:
        """Unite the axes of two groups, or make them parallel (two loops, factored alike) if they must stay distinct,
        factoring leaves where needed, and return True.

        Return False if the borders of their factors cross (3 x 4 and 4 x 3); leaves may be factored even then.
        """
        while self.sizes(one) != self.sizes(other):
            if not _aligned(self.sizes(one), self.sizes(other)):
                return False
            for a, b in zip(self.leaves(one), self.leaves(other), strict=False):
                small, large = sorted((self.lengths[a], self.lengths[b]))
                if small != large:
                    self.factor(a if self.lengths[a] == large else b, (small, large // small))
                    break
        for a, b in zip(self.leaves(one), self.leaves(other), strict=True):
            self._unite(a, b)
        return True

    def _unite(self, one: int, other: int) -> None:
        """Unite two axes; if they must stay distinct (`apart`), make them parallel instead: two loops, factored alike.
        Nothing if they are already one.
        """
        one, other = self.root(one), self.root(other)
        if one == other:
            return
        fewer, than = (one, other) if len(self.apart[one]) <= len(self.apart[other]) else (other, one)
        if any(self.root(axis) == than for axis in self.apart[fewer]):
            self._parallel(one, other)
            return
        self.parents[other] = one
        self.apart[one] |= self.apart[other]
        for axis in self.apart[other]:
            self.apart[self.root(axis)].add(one)
        self.alike[one] |= self.alike[other]

    def _parallel(self, one: int, other: int) -> None:
        one, other = self.root(one), self.root(other)
        if one != other:
            self.alike[one].add(other)
            self.alike[other].add(one)


def _aligned(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Return whether two sequences of factors have a common refinement in order: 4 x 6 and 2 x 12 do, 3 x 4 and 4 x 3
    do not.
    """
    one, other = list(ours), [length for length in theirs if length > 1]
    while one and other:
        a, b = one.pop(0), other.pop(0)
        small, large = sorted((a, b))
        if large % small:
            return False
        if a > small:
            one.insert(0, a // small)
        elif b > small:
            other.insert(0, b // small)
    return not one and not other
