"""A pin is in the plan, or the plan is refused with a sentence that names the pin; a hint of a refusal works."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api.mixed import plan_mixed
from symconfig.api.planning import plan
from symconfig.descriptor.job import PIN_NAMES
from symconfig.errors import SymconfigError
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.configuration import DEGREES, EXTRAS
from symconfig.plans.mixed import Alone
from symconfig.plans.plan import Candidate, Plan
from symconfig.render import own_target, render
from symconfig.render.files import write
from symconfig.runs import mixed
from symconfig.solve.pins import number_range
from tests.sampled import sampled

VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "dp"), ("1", "2", "4", "3", "2..4")),
    **dict.fromkeys(("vpp", "etp", "mbs", "instances", "gtp"), ("1", "2")),
    **{extra.pin: tuple(extra.values) for extra in EXTRAS if extra.values},
    "zero": ("0", "1", "2", "3", "1..2"),
    "sp": ("true", "off"),
    "recompute": ("none", "selective", "full", "selective:core_attn"),
    "precision": ("bf16", "fp16", "fp8", "mxfp8"),
    "optimizer_offload": ("0", "0.3", "0.5", "1"),
    "activation_offload": ("true", "off"),
    "cp_comm": ("p2p", "a2a", "all_gather"),
    "layout": ("equal", "ends"),
}
OFF = {"off", "false", "0", "none", "alltoall"}


def has(best: Candidate, name: str, value: str) -> bool:
    """Tell, from the plan alone, whether a candidate is as pinned. What nobody exchanges is exchanged in no way."""
    p, o = best.configuration, best.configuration
    numbers = {"mbs": best.configuration.micro, "zero": o.zero_stage, "instances": o.instances, "gtp": o.gtp}
    if name in numbers or name in DEGREES:
        bounds = number_range(value)
        return bounds is not None and bounds[0] <= numbers.get(name, getattr(p, name, 0)) <= bounds[1]
    switches = {
        "sp": o.sequence_parallel,
        "activation_offload": o.activation_offload,
        "user_buffers": o.overlap_tp_comm,
        "moe_overlap": o.overlap_moe_a2a,
        "fp8_param_gather": o.fp8_param_gather,
        "fused_loss": o.fused_loss,
        "paged_stash": o.paged_stash,
        "fp8_attention": o.fp8_attention,
    }
    if name in switches:
        return switches[name] == (value not in OFF)
    if name == "layout":
        layers = [sum(kind not in ("embedding", "head", "mtp") for kind in chunk) for chunk in best.chunks]
        return len(set(layers if value == "equal" else layers[1:-1])) <= 1
    if name == "recompute":
        kind, _, modules = value.partition(":")
        return kind == o.recompute and modules in ("", ",".join(o.recompute_modules))
    return (
        value
        == {
            "precision": o.precision,
            "optimizer_offload": f"{o.optimizer_offload:g}",
            "cp_comm": o.cp_comm if p.cp > 1 else value,
            "dispatcher": o.moe_flex_backend or "alltoall",
            "cuda_graphs": o.cuda_graphs.replace(" ", "_"),
            "expert_capacity": f"{o.expert_capacity:g}" if o.expert_capacity else "none",
            "grad_dtype": "fp32" if o.grad_bytes == 4 else "bf16",
        }[name]
    )


def planned(model: str, backend: str, pins: dict[str, str], **more: Any) -> Candidate:
    job = {"gpus": 8, "global_batch_size": 64, "seq_length": 4096, "backend": backend} | more
    return plan(model, "h100", pins=pins, top=1, **job).plan.best


def tried(model: str, backend: str, pins: dict[str, str]) -> Plan | str:
    """Return the plan, or why there is none."""
    try:
        return plan(model, "h100", 8, 64, 4096, backend=backend, pins=pins, top=1).plan
    except SymconfigError as error:
        return str(error)


def launched(made: Plan, folder: Path) -> Candidate:
    """Return what an audit of the plan's files reads. What FSDP's leave to the training script is given."""
    write(render(made, own_target(made)), folder)
    script = next(folder / name for name in ("launch.sh", "train.sh") if (folder / name).is_file())
    more = {"model": made.job.model, "seq_length": 4096} if made.job.backend == "fsdp" else {}
    found = symconfig.audit(script, made.cluster, made.job.gpus, plan=False, **more)
    assert found.judged is not None, found.unpredicted
    return found.judged.plan.best


def test_every_pin_is_tried() -> None:
    assert set(VALUES) == set(PIN_NAMES)


# Of six combinations for each pin, a step of five takes another one of each.
@pytest.mark.parametrize(
    ("name", "backend", "model"), sampled(product(PIN_NAMES, BACKENDS, ("llama3.1-8b", "qwen3-30b-a3b")), 5)
)
def test_a_pin_is_in_the_plan_and_its_files_or_the_plan_is_refused(
    model: str, backend: str, name: str, tmp_path: Path
) -> None:
    for value in VALUES[name]:
        made = tried(model, backend, {name: value})
        if isinstance(made, str):
            assert name in made
            continue
        assert has(made.best, name, value), value
        read = launched(made, tmp_path / value)
        assert read.configuration == made.best.configuration
        assert read.predicted.time == pytest.approx(made.best.predicted.time), value
        assert read.predicted.memory == pytest.approx(made.best.predicted.memory), value


@pytest.fixture
def neither_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the searches for what either kind of GPUs would do by itself: these tests hold no pin to them."""
    monkeypatch.setattr(mixed, "_alone", lambda model, share, job, progress: Alone(share, why="not asked"))


def tried_on_both(pins: dict[str, str]) -> Candidate | str:
    try:
        return plan_mixed("qwen3-30b-a3b", "h200*8 + h100*8", 32, 4096, pins=pins, top=1).best.candidate
    except SymconfigError as error:
        return str(error)


@pytest.mark.usefixtures("neither_alone")
@pytest.mark.parametrize(("name", "value"), sampled(((name, value) for name in PIN_NAMES for value in VALUES[name]), 4))
def test_a_pin_is_in_a_plan_over_two_kinds_of_gpus_or_it_is_refused(name: str, value: str) -> None:
    made = tried_on_both({"tp": "2", "pp": "2", "recompute": "none", "mbs": "1", name: value})
    assert name in made if isinstance(made, str) else has(made, name, value), value


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
@pytest.mark.parametrize("pin", ["tp=40", "tp=16", "tp=3", "mbs=5", "cp=3", "dp=5..7"])
def test_what_a_refusal_proposes_works(backend: str, pin: str) -> None:
    """40 heads: tp 16 and 32 divide 64 GPUs, and not the heads."""
    name, _, value = pin.partition("=")
    with pytest.raises(SymconfigError) as refused:
        planned("llama2-13b", backend, {name: value}, gpus=64, global_batch_size=256)
    proposed = re.findall(r"--pin (\w+)=(\S+?)(?: or|\.$|$)", str(refused.value))
    assert proposed
    for other, number in proposed:
        assert has(planned("llama2-13b", backend, {other: number}, gpus=64, global_batch_size=256), other, number)
