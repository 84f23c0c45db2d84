"""Launch scripts in the ways in which people write them, from a plan's options; and these adapted to another plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from symconfig.existing.adapt.draft import Adapted
from symconfig.existing.adapt.files import adapted
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan
from symconfig.render import megatron
from symconfig.render.files import sh
from tests.sample_plans import sample_plan

Options = list[str]  # each an option with its values, quoted for the shell

START = "torchrun --nnodes {nodes} --nproc_per_node {each} pretrain_gpt.py"


def options(plan: Plan) -> Options:
    return [" ".join(map(sh, option)) for group in megatron.groups(plan) for option in group.options]


def start(plan: Plan) -> str:
    gpus = plan.best.configuration.world_size
    each = min(gpus, 8)
    return START.format(nodes=gpus // each, each=each)


def head(plan: Plan) -> str:
    """With the variables that the plan cannot do without."""
    rows = environment.variables(plan, megatron.version(plan))
    return "#!/bin/bash\n" + "".join(f"export {row.name}={row.value}\n" for row in rows if row.forced) + "\n"


def array(plan: Plan, said: Options) -> str:
    lines = "".join(f"    {option}\n" for option in said)
    return f'{head(plan)}ARGS=(\n    # all of them\n{lines})\n\n{start(plan)} "${{ARGS[@]}}"\n'


def arrays(plan: Plan, said: Options) -> str:
    """Three of them, the second without a line of its own for each option."""
    a, b = len(said) // 3, 2 * len(said) // 3
    lines = ["".join(f"\t{option}  # {index}\n" for index, option in enumerate(part)) for part in (said[:a], said[b:])]
    return (
        f"{head(plan)}FIRST=(\n{lines[0]})\nSECOND=({' '.join(said[a:b])})\nLAST=(\n{lines[1]})\n"
        f"{start(plan)} ${{FIRST[@]}} ${{SECOND[@]}} ${{LAST[@]}}\n"
    )


def continued(plan: Plan, said: Options) -> str:
    return f"{head(plan)}{start(plan)} \\\n" + " \\\n".join(f"  {option}" for option in said) + "\n"


def text(plan: Plan, said: Options) -> str:
    lines = " \\\n".join(f"    {option}" for option in said)
    return f'{head(plan)}OPTIONS="\n{lines}\n"\n\n{start(plan)} $OPTIONS\n'


def line(plan: Plan, said: Options) -> str:
    return f"{start(plan)} {' '.join(said)}"


def variables(plan: Plan, said: Options) -> str:
    """The degrees and batches as variables at the top, some as defaults of the environment's."""
    top, body = head(plan), []
    for number, option in enumerate(said):
        name, *values = option.split(" ")
        if name.endswith(("-size", "-layers")) and len(values) == 1:
            variable = name[2:].replace("-", "_").upper()
            top += f"{variable}=${{{variable}:-{values[0]}}}\n" if number % 2 else f"{variable}={values[0]}\n"
            option = f"{name} ${variable}" if number % 3 else f'{name} "${{{variable}}}"'
        body.append(f"    {option} \\\n")
    return f"{top}\n{start(plan)} \\\n{''.join(body)}    --no-save-rng\n"


def joined(plan: Plan, said: Options) -> str:
    return array(plan, ["=".join(option.split(" ")) if option.count(" ") == 1 else option for option in said])


STYLES: dict[str, Callable[[Plan, Options], str]] = {
    each.__name__: each for each in (array, arrays, continued, text, line, variables, joined)
}


def written(folder: Path, content: str, name: str = "train.sh") -> str:
    path = folder / name
    path.write_bytes(content.encode())
    return str(path)


def plan(model: str = "llama2-13b", **fields: Any) -> Plan:
    return sample_plan(model, **{"tp": 4, "pp": 2, "dp": 2, "global_batch": 32, **fields})


MINE, GOAL = plan(), plan(tp=2, dp=4, micro=2)


def adapt(folder: Path, content: str, goal: Plan = GOAL, extra: tuple[str, ...] = (), **variables: str) -> Adapted:
    return adapted(written(folder, content), goal, variables, extra)


def applied(folder: Path, content: str, goal: Plan) -> tuple[Adapted, Path]:
    """Return the outcome, and the script, which is edited as the outcome says."""
    outcome = adapt(folder, content, goal)
    for file, data in outcome.files.items():
        Path(file).write_bytes(data)
    return outcome, folder / "train.sh"


def new(outcome: Adapted) -> str:
    """Return the script as it is to be."""
    return outcome.files.get(outcome.reading.file, outcome.reading.texts[0].data).decode()


def lines(outcome: Adapted) -> list[str]:
    """Return the lines that the diff takes away and puts in."""
    return [line for line in outcome.diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]
