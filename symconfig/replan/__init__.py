"""A plan made again: what changed, why, what it would cost to stay, and how the run goes on."""

from symconfig.callables import make_callable

make_callable(__name__)
