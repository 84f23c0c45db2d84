"""The driver of the real starts: it reads every framework's log as it is, and nothing that is not the plan's passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, targets
from tools.verify.training import held, judged, material, results, unshared, wrong
from tools.verify.training.cases import CASES, LEFT_OUT, SEQUENCES, TINY, learning_rate
from tools.verify.training.results import Outcome, Step
from tools.verify.training.starts import STARTS

PLAN = CASES[0].plan()
GOOD = [Step(5.5 - 0.1 * number, learning_rate(PLAN, number), SEQUENCES) for number in range(8)]


def test_a_run_that_is_the_plan_s_passes() -> None:
    assert list(wrong(PLAN, GOOD)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (GOOD[:7], "7 steps, the plan has 8"),
        ([*GOOD[:7], replace(GOOD[7], loss=float("nan"))], "not finite"),
        ([replace(step, loss=5.0) for step in GOOD], "does not fall"),
        ([*GOOD[:7], replace(GOOD[7], gradient=0.0)], "a gradient is 0 or not finite"),
        ([*GOOD[:7], replace(GOOD[7], gradient=float("nan"))], "a gradient is 0 or not finite"),
        (
            [*GOOD[:7], replace(GOOD[7], learning_rate=0.001)],
            "step 8 has the learning rate 0.001, the plan has 0.0003206",
        ),
        ([replace(GOOD[0], sequences=4), *GOOD[1:]], "step 1 takes 4 sequences, the plan has 8"),
    ],
)
def test_what_is_not_the_plan_s_is_said(changed: list[Step], said: str) -> None:
    assert said in " ".join(wrong(PLAN, changed))


def test_a_format_whose_losses_are_apart_has_not_passed() -> None:
    first = Outcome("deepspeed", 2, tuple(GOOD))
    close = Outcome("accelerate", 2, tuple(replace(step, loss=step.loss * 1.0001) for step in GOOD))
    assert judged(close, first).passed
    far = Outcome("accelerate", 2, (*GOOD[:7], replace(GOOD[7], loss=5.0)))
    assert "4.2e-02 apart from those of deepspeed" in " ".join(judged(far, first).said)


def test_a_rank_that_keeps_another_share_of_the_states_is_said() -> None:
    """ZeRO-1 on two ranks halves the states of a model, whose numbers Transformers' own class counts."""
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    half = sum(tensor.numel() for tensor in model.parameters()) // 2
    assert list(unshared(PLAN, [half, half])) == []
    (said,) = unshared(PLAN, [half, 2 * half])
    assert f"keeps the states of {2 * half:,} numbers, the plan has {half:,}" in said
    assert list(unshared(PLAN, [half])) == ["1 of 2 ranks say what they keep."]


def test_words_that_a_family_s_own_tokenizer_does_not_read_are_said(tmp_path: Path) -> None:
    """Transformers reads Qwen2's folders with Qwen2Tokenizer, whatever they say."""
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    material.tokenizer(TINY["vocab_size"], tmp_path)
    material.check_words(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ValueError, match=r"Qwen2Tokenizer reads w2 w3 as \[\]"):
        material.check_words(tmp_path)


def counted(plan: Plan) -> dict[str, Any]:
    """Return what a rank counts that holds and reads what the plan has."""
    actor, away = held.actor(plan), sorted(plan.rl[0].away)
    rest = int(held.resting(actor, held.GRADIENTS)) if not held.in_shards(plan) and not away else 0
    whole = {"gradients": rest, "gradients afterwards": rest, "on the host afterwards": away}
    rank = {
        phase: whole | {"tokens": tokens, "read": tokens, "peak": int(held.peak_bytes(actor, phase, tokens[0][0]))}
        for phase, tokens in {
            "log-probabilities": [[280] * 5],
            "reference": [[280] * 5],
            "update": [[250] * 3] * 2,
        }.items()
    }
    on_host = [part for part in away if part != held.WEIGHTS]
    rank["log-probabilities"]["on the host"], rank["reference"]["on the host"] = on_host, away
    rank["reference"]["reference"] = int(held.resting(actor, held.WEIGHTS))
    rank["update"] |= {part: int(held.resting(actor, part)) for part in (held.WEIGHTS, held.GRADIENTS, held.STATES)}
    rank["update"]["on the host"] = []
    return rank


@pytest.mark.parametrize("target", ["verl-fsdp", "verl"])
def test_workers_that_hold_or_read_something_else_are_named(target: str) -> None:
    case = next(case for case in CASES if case.away and target in case.formats)
    plan = case.plan(target)
    rank = counted(plan)

    def problems(**changed: object) -> str:
        ranks = held.ranks("counted " + json.dumps(rank | {"update": rank["update"] | changed}) + "\n") * 2
        return " ".join(held.wrong(plan, list(held.held(plan, ranks)), ranks))

    assert problems() == ""
    assert "bytes of gradients: 0, the plan has" in problems(gradients=0)
    assert "micro-batches: 5, the plan has 3" in problems(tokens=[[150] * 5] * 2)
    assert "400 tokens in a micro-batch that has room for 320" in problems(tokens=[[400, 250]])
    assert "peak beside what rests" in problems(peak=2 * rank["update"]["peak"])
    assert "on the host: ['weights'], the plan has []" in problems(**{"on the host": ["weights"]})
    assert "gradients afterwards: 1 bytes are there" in problems(**{"gradients afterwards": 1})
    assert "1 of 2 ranks say what they hold" in " ".join(held.wrong(plan, [], [rank]))


def test_megatron_s_gradients_stay_where_its_weights_do() -> None:
    case = next(case for case in CASES if case.formats == ("verl",) and not case.away)
    plan = case.plan("verl")
    rank = counted(plan)
    assert list(held.wrong(plan, list(held.held(plan, [rank] * 2)), [rank] * 2)) == []
    rank["log-probabilities"]["gradients"] = 0
    assert "log-probabilities: gradients: 0 bytes are there" in " ".join(held.wrong(plan, [], [rank] * 2))


def test_every_format_is_started_or_named() -> None:
    started = {name for case in CASES for name in case.formats}
    assert started == set(STARTS)
    assert started | set(LEFT_OUT) == set(targets()) | set(every_launcher())


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_every_case_is_of_the_kind_that_it_says(case: object) -> None:
    plan: Plan = case.plan()  # type: ignore[attr-defined]
    assert plan.best.configuration.world_size == 2
    assert plan.best.configuration.num_microbatches > 1


def test_the_page_is_that_of_the_recorded_results() -> None:
    recorded = results.read()
    if not recorded:
        pytest.skip("nothing is recorded")
    shown = (results.EVIDENCE / "training.md").read_text(encoding="utf-8")
    assert shown == results.page(recorded), "python -m tools verify training FORMAT"
    assert set(recorded) <= {case.name for case in CASES}
