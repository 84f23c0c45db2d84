"""Many plans at once: every combination of what is asked, on all cores or through an engine, into one table."""

from symconfig.callables import make_callable

make_callable(__name__)
