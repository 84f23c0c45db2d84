"""Hold the logits of trainers' own code against what is predicted: `python -m tools verify logits [NAME…]`.

A program NAME runs on one CPU process of the environment that `python -m tools verify formats NAME` makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.runs.rl.logits import ANSWERS, BESIDE_SCORES, TRL
from symconfig.runs.rl.trained import Trained
from tests.runs.rl import memory_worker
from tests.runs.rl.support import TINY, TOKENS, head_and_loss
from tests.sample_plans import sample_plan
from tools.verify.formats import ENVIRONMENTS

# What is counted, how much of it there is, and the least and the most of what is predicted.
Found = tuple[str, float, float, float]
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_SLACK = 1e-6


def answered(name: str, request: dict[str, Any]) -> Any:
    """Return what the program's worker answers to a request."""
    python, worker = ENVIRONMENTS / name / "bin" / "python", Path(__file__).with_name(f"{name}_worker.py")
    variables = os.environ | {"PYTHONPATH": str(Path(memory_worker.__file__).parent), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [str(python), str(worker), str(asked), str(answer)]
        subprocess.run(command, env=variables, check=True, timeout=300)
        return json.loads(answer.read_text(encoding="utf-8"))


def llamafactory() -> Iterator[Found]:
    """Count KTO and the model of rewards, in bytes of each logit: by what more logits add.

    The log-softmax is of all tokens of a sequence but the last.
    """
    vocabularies = (1024, 3072)
    request = {"config": {name: TINY[name] for name in _SIZES}, "tokens": TOKENS, "vocabularies": vocabularies}
    few, many = answered("llamafactory", request).values()
    each = {name: (many[name] - few[name]) / (2 * TOKENS * 2048) for name in few}
    last = 1 / TOKENS
    planned = [head_and_loss(size, ANSWERS) for size in vocabularies]
    own = (planned[1] - planned[0]) / (TOKENS * 2048)
    for name, predicted in {
        "reference": ANSWERS.kept + ANSWERS.forward - 8 * last,
        # The model's own forward for the KL term has no logits of another beside it, as the reference's has: 4 fewer.
        "KL term": ANSWERS.kept + ANSWERS.forward - 4 - 8 * last,
        "update": (own + ANSWERS.update) * (1 - last),
        "reward": BESIDE_SCORES["llamafactory"].update,
    }.items():
        yield name, each[name], predicted * (1 - _SLACK), predicted * (1 + _SLACK)


def trl() -> Iterator[Found]:
    """Count the head that makes no whole logits, in bytes: to a few numbers of each token."""
    request = {"tokens": 5000, "hidden_size": TINY["hidden_size"], "vocab_size": 40000}
    sized = {"vocab_size": request["vocab_size"], "max_position_embeddings": request["tokens"]}
    model = ModelDescriptor.model_validate_json(json.dumps(TINY | sized))
    plan = sample_plan(model, backend="deepspeed", tp=1, pp=1, dp=1, seq_length=request["tokens"], global_batch=1)
    own, some = Trained(plan, plan.best, 1.0, TRL), 48 * request["tokens"]
    counted = answered("trl", request)
    kept = own.kept_bytes - float(own.parts.cost.memory["activations"].max())
    for name, bytes_, predicted in (
        ("forward", counted["forward"]["peak"], own._in_tiles()),
        ("update", counted["update"]["peak"], own._in_tiles() + own._at_head),
        ("kept", counted["update"]["kept"], kept),
    ):
        yield name, bytes_, predicted, predicted + some


PROGRAMS: dict[str, Callable[[], Iterator[Found]]] = {"llamafactory": llamafactory, "trl": trl}


def main() -> int | str:
    """Count what is asked for, or all; return 1 where a count is not as predicted."""
    names, failed = sys.argv[1:] or list(PROGRAMS), 0
    for name in names:
        if name not in PROGRAMS:
            return f"no such program (got {name}, need one of {', '.join(PROGRAMS)})"
        if not (ENVIRONMENTS / name).exists():
            return f"{name} is not here. Try: python -m tools verify formats {name}"
        for what, counted, low, high in PROGRAMS[name]():
            failed += not low <= counted <= high
            print(f"{name}, {what}: {counted:,.6g} (predicted {low:,.6g} to {high:,.6g})")
    return int(failed > 0)
