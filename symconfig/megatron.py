"""A plan in a script that calls Megatron-LM's `pretrain`, or `parse_and_validate_args` from core_v0.18 on.

    import symconfig.megatron

    os.environ.update(symconfig.megatron.environment("plan/"))
    pretrain(..., extra_args_provider=symconfig.megatron.extra_args_provider("plan/", then=my_own_options))

Options on the command line win over the plan's. All functions hold the number of ranks, the GPU and the installed
release against the plan first (`symconfig.runs.start.started`), and raise MismatchError, InputError, and
InfeasibleError for what Megatron-LM cannot be told.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable

from symconfig.api.planning import AnyPlan
from symconfig.frameworks.megatron import environment as variables
from symconfig.render import megatron
from symconfig.runs.start import OnMismatch, started

Provider = Callable[[ArgumentParser], ArgumentParser]


def extra_args_provider(
    plan: AnyPlan, then: Provider | None = None, *, world_size: int | None = None, on_mismatch: OnMismatch = "fail"
) -> Provider:
    """Return a provider that makes the plan's options the parser's defaults and returns the parser, or what `then`
    returns. then: the script's own provider, called with the parser afterwards. world_size, on_mismatch: see `started`,
    which is called at once and raises MismatchError or InputError; InfeasibleError: Megatron-LM cannot express the
    plan.
    """
    options = [
        option
        for group in megatron.groups(started(plan, "megatron", world_size, on_mismatch))
        for option in group.options
    ]

    def provide(parser: ArgumentParser) -> ArgumentParser:
        """Set the parser's defaults to the values of the plan's options; the parser must have these already."""
        given = parser.parse_args([word for option in options for word in option])
        known = parser._option_string_actions
        named = (known[option[0].partition("=")[0]].dest for option in options)
        parser.set_defaults(**{dest: getattr(given, dest) for dest in named})
        return parser if then is None else then(parser)

    return provide


def argv(plan: AnyPlan, *, world_size: int | None = None, on_mismatch: OnMismatch = "fail") -> list[str]:
    """Return all options as words: `sys.argv[1:1] = symconfig.megatron.argv(plan)` before Megatron-LM parses them."""
    return megatron.arguments(started(plan, "megatron", world_size, on_mismatch))


def environment(plan: AnyPlan, *, world_size: int | None = None, on_mismatch: OnMismatch = "fail") -> dict[str, str]:
    """Return the environment variables that launch.sh exports, by name, for `os.environ.update` before CUDA starts. One
    that is not forced keeps its value in os.environ, if it is set there. The GPU is not looked at. Raises as `started`.
    """
    ready = started(plan, "megatron", world_size, on_mismatch, cuda=False)
    rows = variables.variables(ready, megatron.version(ready))
    return {row.name: row.value if row.forced else os.environ.get(row.name, row.value) for row in rows}
