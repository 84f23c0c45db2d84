"""Target model-args: model_config.yaml with ENV_VARS and MODEL_ARGS, as Megatron-LM's functional tests keep a run.

Who reads it: tests/functional_tests/shell_test_utils/_run_training.sh of Megatron-LM. `true` is a switch, words in
brackets are several values, and the rest goes through `eval` of bash, so that a value has to be spelled for that. Until
core_v0.12 nothing was quoted at all, and until core_v0.16 `|` and brackets inside of a value needed two backslashes
(tests/functional_tests/test_cases of core_v0.14.0 to core_v0.16.1 spell layouts so).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks import counting
from symconfig.frameworks.megatron import environment, flags
from symconfig.frameworks.megatron.environment import Variable
from symconfig.frameworks.megatron.flags import FlagTable
from symconfig.plans.plan import Plan
from symconfig.render import going_on, megatron

NAME = "model-args"
DOES = "model_config.yaml with ENV_VARS and MODEL_ARGS, as Megatron-LM's functional tests have it, and its launch.sh"
ASSUMES = {"backend": "megatron"}
SAVING = megatron.SAVING
COUNTS = counting.MEGATRON
goes_on = going_on.launched
QUOTES_SINCE = "core_v0.13.0"
LAYOUTS_SINCE = "core_v0.17.1"

# An empty ENV_VARS ends the tests' runner: it exports one name all the same, the empty one.
AT_LEAST_ONE = Variable(
    "OMP_NUM_THREADS", "1", "As torchrun sets it by itself", "torch/distributed/run.py, config_from_args"
)

_PLAIN = re.compile(r"[\w@%+=:,./-]+")
_PATTERN = re.compile(r"\([^()\s'\"$`\\]+\)")  # ([0]*3+[1]*58)
_LAYOUT = re.compile(r"[\w*(][\w,*|()/+-]*")  # Et*3|(tt|)*29L, or M-M*|EM
_WORDS = ("true", "false", "null", "~")  # would not stay the texts that they are


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError with every value that the file cannot say, InputError."""
    seen = megatron.variables(plan)
    table = flags.flags(megatron.version(plan))
    problems: list[Problem] = []
    sections: list[tuple[str, Mapping[str, str | bool]]] = []
    for group in megatron.groups(plan):
        options: dict[str, str | bool] = {}
        for option in group.options:
            name, values = option[0], option[1:]
            value = spelled(values, table) if "=" not in name else None
            if value is None:
                problems.append(_unsaid(name, values))
            else:
                options[name] = value
        sections.append((group.name, options))
    if problems:
        raise InfeasibleError(problems)
    exported = environment.variables(plan, table.version) or (AT_LEAST_ONE,)
    return {
        **seen,
        "variables": (),
        "environment": exported,
        "sections": sections,
        "quotes": table.at_least(QUOTES_SINCE),
    }


def spelled(values: tuple[str, ...], table: FlagTable) -> str | bool | None:
    """Return one option's value in the file; True: a switch; None: the tests' runner would pass something else."""
    if not values:
        return True
    quotes = table.at_least(QUOTES_SINCE)
    if len(values) > 1:
        if not all(map(_PLAIN.fullmatch, values)):
            return None
        return f"[{' '.join(values)}]" if quotes else " ".join(values)
    (text,) = values
    if text in _WORDS:
        return None
    if _PLAIN.fullmatch(text) or _PATTERN.fullmatch(text):
        return text
    if _LAYOUT.fullmatch(text):
        return text if table.at_least(LAYOUTS_SINCE) else re.sub(r"([|()])", r"\\\\\1", text)
    return text if quotes and " ".join(_plain_words(text)) == text else None


def _plain_words(text: str) -> list[str]:
    """Split a text that has nothing but plain words."""
    words = text.split()
    return words if all(map(_PLAIN.fullmatch, words)) else []


def _unsaid(name: str, values: tuple[str, ...]) -> Problem:
    return Problem(
        "cannot be said in model_config.yaml: the script that reads it has bash evaluate the value",
        field=name.partition("=")[0],
        got=repr(" ".join(values) or name.partition("=")[2]),
        need="letters, digits and @%+=:,./-_",
        hint="--target megatron",
    )
