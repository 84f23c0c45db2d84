"""What a price counts with is stated in the files: the framework that is read of them has the same step and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.cost.framework import Framework
from symconfig.errors import InfeasibleError
from symconfig.frameworks.extras import in_effect, put_on
from symconfig.graph.implementation import LossKernel
from symconfig.plans.configuration import Configuration
from symconfig.render import render, targets
from symconfig.render.files import write
from symconfig.runs.rl.logits import BY_TARGET
from symconfig.solve.predict import predict
from symconfig.solve.run import usual_of
from tests.sample_rl import LEARNING, step

MODELS = ("llama3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "nemotron-3-nano-30b-a3b", "qwen2.5-7b-lora")
# Targets whose scripts symconfig does not read. Bridge's fields are compared in tests/render/test_renamed.py.
UNREAD = {"bridge": "train.py is Python"}
# What a target's files leave to the code around them.
ELSEWHERE = {"transformers": ("model", "seq_length"), "accelerate": ("model", "seq_length")}
STEPS = {"llama3.1-8b", "qwen2.5-7b-lora"}  # a step of reinforcement learning takes longest to read

PLAIN = Configuration(micro=1, global_batch=1, seq_length=1)


@pytest.mark.parametrize(
    ("target", "model"),
    [(t, m) for t in sorted(targets().keys() - UNREAD) for m in MODELS if t not in LEARNING or m in STEPS],
)
def test_files_have_the_price_of_their_plan(target: str, model: str, tmp_path: Path) -> None:
    job: dict[str, Any] = {"rl": step(model)} if target in LEARNING else {"global_batch_size": 512, "seq_length": 4096}
    gpus = 256 if model == "deepseek-v3" else 16
    try:
        plan = symconfig.plan(model, "h200", gpus, target=target, top=1, **job).plan
    except InfeasibleError:
        pytest.skip("the target has no plan of this model")
    write(render(plan, target), tmp_path / "out")
    given = {"model": model, "seq_length": 4096}
    more: dict[str, Any] = {name: given[name] for name in ELSEWHERE.get(target, ())}
    lengths = {"prompt_length": 200.0, "response_length": 900.0} if target in LEARNING else {}
    script = next(tmp_path / "out" / name for name in ("launch.sh", "train.sh") if (tmp_path / "out" / name).is_file())
    found = symconfig.audit(script, plan.cluster, gpus, plan=False, **more, **lengths)
    assert found.judged is not None, found.unpredicted
    read = found.judged.run.configuration
    usual = usual_of(plan.cluster, plan.job, read.precision)
    priced = put_on(usual, plan.cluster.gpu.architecture, in_effect(plan.best.configuration), PLAIN)
    launched, kernel = found.judged.run.described.model, BY_TARGET[target].loss if target in BY_TARGET else None
    mine, theirs = (
        predict(model, plan.cluster, replace(read, framework=_with_loss(one, kernel))).predicted
        for model, one in ((plan.model, priced), (launched, read.framework))
    )
    assert mine.time == pytest.approx(theirs.time, rel=1e-9)
    assert mine.memory == pytest.approx(theirs.memory, rel=1e-9)


def _with_loss(framework: Framework, kernel: LossKernel | None) -> Framework:
    """Return the framework with a trainer's own loss, which plans and audits of its updates put on."""
    how = framework.implementation
    loss = how.loss if kernel is None else replace(how.loss, kernel=kernel)
    return replace(framework, implementation=replace(how, loss=loss))
