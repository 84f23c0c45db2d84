"""`symconfig audit --log`: a running job's log beside the prediction of its script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from symconfig.api.existing import audit, compare
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.existing.audit.audit import Audit
from symconfig.measured import comparison
from symconfig.measured.comparison import Comparison
from symconfig.plans.plan import Plan
from symconfig.render import megatron
from symconfig.report.grid import plain
from symconfig.report.validation import comparison_blocks
from tests.cli.support import Run
from tests.measured.log_samples import iteration, memory, plan_log, write
from tests.sample_plans import sample_plan

A100 = load_cluster("a100-80gb")
TIMERS = """\
(min, max) time across ranks (ms):
    forward-backward ...............................: ({0:.2f}, {1:.2f})
    batch-generator ................................: (3.10, 41.52)
    optimizer ......................................: ({2:.2f}, {2:.2f})
"""


def audited(plan: Plan) -> Audit:
    words = " ".join(megatron.arguments(plan))
    return audit(words, plan.cluster, plan.best.configuration.world_size, plan=False)


def compared(plan: Plan, folder: Path, ms: float, more: str = "") -> Comparison:
    return compare(audited(plan), write(folder, plan_log(plan, ms) + more))


def step_ms(plan: Plan, **constants: float) -> float:
    """The step that the same arguments are predicted to take on a machine with other constants, as factors."""
    kernels = A100.kernels
    changed = {
        name: getattr(kernels, name).model_copy(update={"value": getattr(kernels, name).value * factor})
        for name, factor in constants.items()
    }
    other: ClusterDescriptor = A100.model_copy(update={"kernels": kernels.model_copy(update=changed)})
    words = " ".join(megatron.arguments(plan))
    judged = audit(words, other, plan.best.configuration.world_size, plan=False).judged
    return 1e3 * judged.plan.best.predicted.step_s


@pytest.mark.parametrize("model", ["llama2-13b", "mixtral-8x7b"])
def test_a_log_of_the_plan_itself_differs_in_nothing(model: str, tmp_path: Path) -> None:
    plan = sample_plan(model, A100)
    found = compared(plan, tmp_path, step_ms(plan))
    assert found.differences == ()
    assert found.causes == ()
    assert found.as_usual
    assert found.seconds[0].ratio == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize(
    ("constant", "name"),
    [
        ("gemm_efficiency", "matrix products"),
        ("hbm_efficiency", "memory bandwidth"),
        ("link_efficiency", "links within a node"),
    ],
)
def test_the_constant_that_is_off_is_among_the_causes_with_its_true_value(
    constant: str, name: str, tmp_path: Path
) -> None:
    plan = sample_plan("llama2-13b", A100)
    found = compared(plan, tmp_path, step_ms(plan, **{constant: 0.5}))
    cause = next(one for one in found.causes if one.name == name)
    assert cause.assumed == getattr(A100.kernels, constant).value
    assert cause.needed == pytest.approx(0.5 * cause.assumed, rel=0.06)
    assert [one.deviations for one in found.causes] == sorted(one.deviations for one in found.causes)


def test_a_step_that_nothing_explains_is_said_to_be_such(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", A100)
    found = compared(plan, tmp_path, 20 * step_ms(plan))
    assert found.causes == ()
    text = plain(comparison_blocks(found), 100)
    assert "No assumption explains the step alone, within a factor of 3." in text


def test_uneven_experts_explain_a_slower_step(tmp_path: Path) -> None:
    plan = sample_plan("mixtral-8x7b", A100)
    uneven = audit(
        " ".join(megatron.arguments(plan)),
        A100,
        plan.best.configuration.world_size,
        limits={"expert_imbalance": 1.8},
        plan=False,
    ).judged
    found = compared(plan, tmp_path, 1e3 * uneven.plan.best.predicted.step_s)
    cause = next(one for one in found.causes if one.name == "load imbalance of experts")
    assert cause.needed == pytest.approx(1.8, rel=0.05)


def test_parts_memory_and_lost_time_are_read(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", A100)
    ms = step_ms(plan)
    stage = plan.best.configuration.world_size // plan.best.configuration.pp
    more = "".join(
        [
            TIMERS.format(9e3, 9e3, 900),  # of the first report, which has the start in it
            TIMERS.format(0.98 * ms, 0.99 * ms, 12.0),
            memory(0, 30_000.0),
            memory(stage * (plan.best.configuration.pp - 1), 31_000.0),
            *(iteration(number, 3 * ms, plan.best.configuration.global_batch) for number in (8, 9)),
        ]
    )
    found = compared(plan, tmp_path, ms, more)
    parts = {part.name: part for part in found.seconds}
    assert parts["forward and backward"].measured == pytest.approx(0.99e-3 * ms, rel=1e-3)
    assert parts["optimizer"].measured == pytest.approx(0.012)
    assert parts["data loading"].predicted is None
    assert any("peak allocated" in part.name for part in found.memory)
    assert found.log.steady.lost > 0.2


def test_another_option_in_the_log_is_named(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", A100)
    text = re.sub(r"(  overlap_grad_reduce \.+) True", r"\1 False", plan_log(plan))
    found = compare(audited(plan), write(tmp_path, text))
    assert [(one.option, one.script, one.log) for one in found.differences] == [
        ("--overlap-grad-reduce", "True", "False")
    ]


@pytest.mark.parametrize(
    ("script", "log", "equal"),
    [
        ("([0]*1+[1]*3)", "[0, 1, 1, 1]", True),
        ("([0]*1+[1]*3)", (0, 1, 1, 1), True),
        ("([0]*1+[1]*3)", "[0, 0, 1, 1]", False),
        ("bf16", "torch.bfloat16", True),
        ("fp32", "torch.bfloat16", False),
        (1e-5, "1e-05", True),
        ("[a, b]", "[a,b]", True),
    ],
)
def test_values_are_compared_by_what_they_say(script: object, log: object, equal: bool) -> None:
    assert (comparison._text(script) == comparison._text(log)) is equal


def test_lists_of_a_short_log_are_read_as_the_script_s(tmp_path: Path) -> None:
    plan = sample_plan("mixtral-8x7b", A100)
    kept = "  moe_router_load_balancing_type ", "  moe_aux_loss_coeff "
    lines = plan_log(plan).splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("  ") or line.startswith(kept))
    assert "['aux_loss']" in text
    assert compare(audited(plan), write(tmp_path, text)).differences == ()


def test_a_log_of_another_job_is_refused(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", A100)
    other = plan_log(plan).replace(
        f"global batch size: {plan.best.configuration.global_batch:5d}", "global batch size:     7"
    )
    with pytest.raises(InputError, match="is of another job: its global batch differ"):
        compare(audited(plan), write(tmp_path, other))


def test_the_command_prints_and_answers(run: Run, tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", A100)
    log = write(tmp_path, plan_log(plan, 1.5 * step_ms(plan)))
    words = " ".join(megatron.arguments(plan))
    options = ("--cluster", "a100-80gb", "--gpus", str(plan.best.configuration.world_size), "--no-plan", "--log", log)
    text = run("audit", words, *options)
    assert text.code == 0, text.err
    assert "Any of these alone would explain the step" in text.out
    data = run("audit", words, *options, "--json").json()["log"]
    assert data["seconds"][0]["measured"] == pytest.approx(1.5e-3 * step_ms(plan), rel=1e-3)
    assert data["causes"][0]["name"] == "matrix products"
    missing = run("audit", words, "--log", log)
    assert missing.code == 2
    assert "--cluster" in missing.err
