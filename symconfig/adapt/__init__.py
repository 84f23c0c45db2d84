"""A person's own file with a plan's values in it, and nothing else changed."""

from symconfig.callables import make_callable

make_callable(__name__)
