"""An existing configuration, judged: what it costs, what is wrong with it, and how to get to the best plan from it."""

from symconfig.callables import make_callable

make_callable(__name__)
