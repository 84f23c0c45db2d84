"""Sizes as products of named symbols: `3/2 * seq_length * hidden_size / tp`. Exact, hashable, no SymPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

Powers = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Monomial:
    """coefficient * product of symbol ** power; `powers` is sorted by name and holds no zero."""

    coefficient: Fraction = Fraction(1)
    powers: Powers = ()

    def __hash__(self) -> int:
        """Return the hash of the powers: few sizes differ in their coefficient alone, and hashing fractions is slow."""
        return hash(self.powers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Monomial) or self.powers != other.powers:
            return False
        return self.coefficient is other.coefficient or self.coefficient == other.coefficient

    @staticmethod
    def of(*names: str) -> Monomial:
        """Return the product of the symbols, with coefficient 1; a symbol given twice is squared."""
        return _of(names)

    def __mul__(self, other: Monomial | int | Fraction) -> Monomial:
        if not isinstance(other, Monomial):
            return Monomial(self.coefficient * other, self.powers)
        return Monomial(_times(self.coefficient, other.coefficient), _merged(self.powers, other.powers, 1))

    def __truediv__(self, other: Monomial | int | Fraction) -> Monomial:
        if not isinstance(other, Monomial):
            return Monomial(self.coefficient / other, self.powers)
        inverse = other.coefficient if other.coefficient == 1 else 1 / other.coefficient
        return Monomial(_times(self.coefficient, inverse), _merged(self.powers, other.powers, -1))

    def substitute(self, values: Mapping[str, Monomial]) -> Monomial:
        """Return the monomial with each symbol in `values` replaced by its monomial, raised to the symbol's power; the
        object itself if no symbol of it is in `values`.
        """
        if not any(name in values for name, _ in self.powers):
            return self
        result = Monomial(self.coefficient)
        for name, power in self.powers:
            factor = values.get(name, Monomial(Fraction(1), ((name, 1),)))
            for _ in range(abs(power)):
                result = result * factor if power > 0 else result / factor
        return result

    def value(self, numbers: Mapping[str, float]) -> float:
        """Return the value as a float. Raise KeyError for a symbol without a number."""
        result = float(self.coefficient)
        for name, power in self.powers:
            result *= float(numbers[name]) ** power
        return result

    def whole(self, numbers: Mapping[str, int]) -> int:
        """Return the exact value as an integer. Raise ValueError if it is no integer, KeyError for a symbol that
        `numbers` lacks.
        """
        above, below = self.coefficient.numerator, self.coefficient.denominator
        for name, power in self.powers:
            if power > 0:
                above *= numbers[name] ** power
            else:
                below *= numbers[name] ** -power
        if above % below:
            raise ValueError(f"{self} is not a whole number: {above} / {below}")
        return above // below

    def __str__(self) -> str:
        above = [name if power == 1 else f"{name}^{power}" for name, power in self.powers if power > 0]
        below = [name if power == -1 else f"{name}^{-power}" for name, power in self.powers if power < 0]
        if self.coefficient != 1 or not above:
            above.insert(0, str(self.coefficient))
        return " * ".join(above) + "".join(f" / {name}" for name in below)


ONE = Monomial()


def product(factors: Iterable[Monomial]) -> Monomial:
    result = ONE
    for factor in factors:
        result = result * factor
    return result


@cache
def _of(names: tuple[str, ...]) -> Monomial:
    powers: dict[str, int] = {}
    for name in names:
        powers[name] = powers.get(name, 0) + 1
    return Monomial(Fraction(1), tuple(sorted(powers.items())))


def _times(a: Fraction, b: Fraction) -> Fraction:
    """Return a * b, without a multiplication if one is 1: most are, and multiplying fractions is slow."""
    return b if a == 1 else a if b == 1 else a * b


def _merged(ours: Powers, theirs: Powers, sign: int) -> Powers:
    powers = dict(ours)
    for name, power in theirs:
        powers[name] = powers.get(name, 0) + sign * power
    return tuple(sorted((name, power) for name, power in powers.items() if power))
