"""symconfig's kept tensors beside Megatron's: which go together, and what counts as a difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.plans.plan import Recompute
from symconfig.render import render
from symconfig.render.files import write
from symconfig.report.verify import checked as blocks
from symconfig.verify import checks, megatron, megatron_saved
from symconfig.verify.checks import Check, Compared, Options
from symconfig.verify.megatron_saved import SavedTensor
from symconfig.verify.megatron_session import Job, Result
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import rendered, source


def ours(layer: int | None, tensor: str, size: float, block: str = "dense") -> SavedTensor:
    return SavedTensor(0, layer, block, tensor, size)


def real(layer: int | None, module: str, size: float, **more: Any) -> dict[str, Any]:
    path = module if layer is None else f"decoder.layers.{layer}.{module}".rstrip(".")
    return {
        "chunk": 0,
        "layer": layer,
        "bytes": size,
        "module": path,
        "reader": path,
        "shared": False,
        **more,
    }


def test_layers_with_the_same_tensors_are_one_group_and_the_ends_another() -> None:
    layers = [ours(0, "layer_in", 1), *(ours(place, "hidden", 9) for place in (1, 2))]
    found = megatron_saved.groups(
        [ours(None, "tokens", 2, "embedding"), *layers, ours(None, "logits", 5, "head")],
        [real(0, "", 1), real(1, "mlp", 9), real(2, "mlp", 9), real(None, "embedding", 2), real(None, "", 5)],
    )
    assert [(group.compared.what, group.ours_bytes, group.real_bytes) for group in found] == [
        ("dense 1, 1 layer", 1, 1),
        ("dense 2, 2 layers", 18, 18),
        ("embedding, head", 7, 7),
    ]


def test_what_the_multi_token_layer_keeps_is_not_the_decoders() -> None:
    found = megatron_saved.groups(
        [
            ours(0, "hidden", 9),
            ours(0, "hidden", 7, "mtp"),
            ours(0, "mtp_final_norm", 5, "mtp"),
        ],
        [
            real(0, "mlp", 9),
            {**real(0, "mlp", 6), "module": "mtp.layers.0.mtp_model_layer.mlp"},
            {**real(None, "mtp", 5), "reader": "output_layer"},
        ],
    )
    assert [(group.compared.what, group.real_bytes) for group in found] == [
        ("dense, 1 layer", 9),
        ("mtp, 1 layer", 6),
        ("mtp", 5),
    ]
    assert next(megatron_saved.problems(found)).startswith("mtp, 1 layer: symconfig has 7 bytes, Megatron keeps 6")


def test_tables_that_serve_every_microbatch_are_left_out() -> None:
    (group,) = megatron_saved.groups(
        [ours(0, "hidden", 9)], [real(0, "mlp", 9), real(0, "rotary_pos_emb", 5, shared=True)]
    )
    assert group.real_bytes == 9


@pytest.mark.parametrize(("size", "sentences"), [(102, 0), (98, 0), (103, 2), (97, 2)])
def test_two_per_cent_of_a_kind_or_of_the_stage_are_a_failure(size: float, sentences: int) -> None:
    found = megatron_saved.groups([ours(0, "hidden", size)], [real(0, "mlp", 100)])
    assert len(list(megatron_saved.problems(found))) == sentences


def test_a_difference_is_said_with_both_numbers() -> None:
    found = megatron_saved.groups([ours(0, "hidden", 1500)], [real(0, "mlp", 1000)])
    assert next(megatron_saved.problems(found)) == (
        "dense, 1 layer: symconfig has 1,500 bytes, Megatron keeps 1,000 (+50.00 %)."
    )


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_low_precision_cannot_be_compared(precision: str) -> None:
    plan = sample_plan("llama2-13b", "h100", precision=precision)
    assert megatron_saved.jobs(Job("", (), 64), plan) == []
    (check,) = megatron_saved.checks(plan, [], {}, "Megatron", "args")
    assert (check.status, check.detail) == ("skipped", f"Megatron's own layers have no {precision}")


def test_a_dispatcher_without_a_stand_in_is_not_traced() -> None:
    plan = sample_plan("mixtral-8x7b", moe_dispatcher="flex")
    (check,) = megatron_saved.checks(plan, [], {}, "Megatron", "args")
    assert check.status == "skipped"
    assert check.detail.endswith("in the dispatcher alltoall only, not in flex")


def test_a_crash_of_the_trace_is_a_failed_check() -> None:
    plan = sample_plan()
    (job, *_) = megatron_saved.jobs(Job("", (), 64), plan)
    (check,) = megatron_saved.checks(plan, [job], {job.id: Result(job.id, crash="ended with status 9")}, "it", "args")
    assert check.status == "failed"
    assert "ended with status 9" in check.detail


@pytest.fixture(scope="module")
def traced() -> dict[str, list[Check]]:
    """Rendered arguments, their ranks traced and compared: a plan with virtual stages and block recompute, and one
    that recomputes what its arguments do not."""
    model = sample_model("llama2-13b", num_hidden_layers=8)
    whole = rendered(sample_plan(model, tp=2, pp=2, vpp=2, dp=2, recompute=Recompute("full", (), "block", 1)))
    item = rendered(sample_plan(model, tp=2, pp=1, dp=2))
    options = replace(item.plan.best.options, recompute=Recompute("selective", ("core_attn",)))
    wrong = replace(item, plan=replace(item.plan, best=replace(item.plan.best, options=options)))
    found = megatron.check_many({"whole": whole, "wrong": wrong}, source(), trace=True)
    return {name: [check for check in some if "backward" in check.name] for name, some in found.items()}


def test_the_whole_way(traced: dict[str, list[Check]]) -> None:
    assert [check.status for check in traced["whole"]] == ["passed"] * 2
    assert [row.what for row in traced["whole"][0].compared] == [
        "dense 1, 2 layers", "dense 2, 2 layers", "embedding", "all of the stage",
    ]  # fmt: skip


def test_a_plan_that_recomputes_what_the_arguments_do_not_fails(traced: dict[str, list[Check]]) -> None:
    assert traced["wrong"][0].status == "failed"
    assert "all of the stage: symconfig has" in traced["wrong"][0].detail


def test_the_table_tells_bytes_apart_from_counts() -> None:
    check = Check(
        "it",
        "passed",
        "",
        0.0,
        (
            Compared("x", 101, 100, "bytes"),
            Compared("y", 3, 2, "count"),
            Compared("z", 1, 1, "bytes"),
            Compared("new", 1, 0, "bytes"),
        ),
    )
    grid: Any = blocks(Path("DIR"), [check])[1]
    assert [row[-1] for row in grid.rows] == ["+1 (+1.00 %)", "+1", "0", "+1"]


def test_tracing_implies_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    class Framework:
        def applies(self, plan: Any) -> bool:
            return True

        def checks(self, folder: Path, plan: Any, options: Options) -> list[Check]:
            asked.append(options)
            return []

    monkeypatch.setattr(checks, "frameworks", lambda: {"it": Framework()})
    write(render(sample_plan(), "megatron"), tmp_path / "out")
    checks.verify(tmp_path / "out", trace=True)
    assert [(options.build, options.trace) for options in asked] == [(True, True)]


def test_modules_of_deepspeed_are_not_traced(tmp_path: Path) -> None:
    write(render(sample_plan("qwen2.5-7b", "h100", backend="deepspeed"), "deepspeed"), tmp_path / "out")
    with pytest.raises(InputError, match="--trace: runs the modules of Megatron-LM only"):
        checks.verify(tmp_path / "out", trace=True)
