"""A run's length and learning rate stay the same functions of tokens, as Megatron-LM's own scheduler computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.learning_rate import derived
from symconfig.descriptor.training import Training, WholeTraining
from symconfig.errors import InputError
from symconfig.plans.history import History, Segment
from symconfig.plans.plan import Plan
from symconfig.render import target_of
from symconfig.render.shared import CHECKPOINTS_COUNTING, MEGATRON_COUNTING, RENUMBERED_COUNTING, STEPS_COUNTING
from symconfig.runs.replan.schedule import Batch, rate, scheduled
from tests.sample_plans import sample_model, sample_plan

STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
OLD = Batch(8, 4096)


def ran(steps: int) -> History:
    """Steps of OLD that are done."""
    return History().until(steps, OLD.global_batch, OLD.seq_length)


def training(**fields: Any) -> WholeTraining:
    return derived(Training(**{"train_iters": 1000, "lr_warmup_iters": 100, **fields}), "pretrain", 7e9)


def after(old: WholeTraining, batch: int, seq_length: int = 4096, **more: Any) -> WholeTraining:
    return scheduled(old, OLD, batch, seq_length, more.pop("backend", MEGATRON_COUNTING), **more).training


def test_four_times_the_batch_is_a_quarter_of_the_iterations() -> None:
    new = after(training(save_interval=500, eval_interval=100, eval_iters=6), 32)
    assert (new.train_iters, new.lr_warmup_iters, new.save_interval, new.eval_interval) == (250, 25, 125, 25)
    assert new.eval_iters == 2  # as many sequences, in whole steps
    assert new.lr_decay_iters is None
    assert new.lr == training().lr


def test_iterations_count_on_from_the_checkpoint_and_the_schedule_in_sequences() -> None:
    found = scheduled(training(), OLD, 32, 4096, MEGATRON_COUNTING, ran(400))
    assert found.training.train_iters == 400 + 600 * 8 // 32
    assert found.training.lr_decay_iters == 1000 * 8 // 32
    assert found.training.lr_warmup_iters == 25
    assert found.consumed == 3200
    assert found.options == (MEGATRON_COUNTING.override,)


def test_deepspeeds_script_counts_steps_anew() -> None:
    found = scheduled(training(), OLD, 32, 4096, RENUMBERED_COUNTING, ran(402))
    assert found.training.train_iters == 250
    assert found.options == ()
    assert any("goes on at step 100" in note for note in found.notes)
    assert any("16 of the sequences" in note for note in found.notes)


def test_what_a_checkpoint_has_seen_counts_where_its_batch_was_not_always_the_same() -> None:
    found = scheduled(training(), OLD, 32, 2048, MEGATRON_COUNTING, ran(400).seen(1600))
    # the decay ends 8,000 sequences of the old length in: 1,600 are behind it, the others are twice as many now
    assert found.training.lr_decay_iters == (1600 + 6400 * 2) // 32
    assert found.training.train_iters == 400 + 600 * 8 * 2 // 32


def test_as_is_changes_nothing_and_says_what_that_means() -> None:
    found = scheduled(training(), OLD, 32, 4096, MEGATRON_COUNTING, mode="as-is")
    assert found.training == training()
    assert "32,768,000 tokens and see 131,072,000" in found.notes[0]


def test_the_same_batch_changes_nothing() -> None:
    found = scheduled(training(), OLD, 8, 4096, MEGATRON_COUNTING, ran(10))
    assert (found.training, found.rescaled, found.notes, found.options) == (training(), (), (), ())


@given(
    st.integers(1, 10**6),
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.sampled_from((512, 4096, 6000)),
    st.integers(0, 10**6),
)
def test_never_fewer_tokens_and_less_than_a_step_more(
    iterations: int, old: int, new: int, length: int, step: int
) -> None:
    before = Batch(old, 4096)
    step = min(step, iterations)
    found = scheduled(
        training(train_iters=iterations, lr_warmup_iters=0),
        before,
        new,
        length,
        MEGATRON_COUNTING,
        History().until(step, old, 4096),
    )
    more = (found.training.train_iters - step) * new * length - (iterations - step) * old * 4096
    assert 0 <= more < new * length


@given(st.integers(1, 10**6), st.integers(1, 4096), st.integers(1, 4096))
def test_nothing_is_rounded_to_nothing(iterations: int, old: int, new: int) -> None:
    found = scheduled(
        training(train_iters=iterations, lr_warmup_iters=min(100, iterations - 1)),
        Batch(old, 1),
        new,
        1,
        MEGATRON_COUNTING,
    ).training
    assert WholeTraining.model_validate(found.model_dump()) == found
    assert found.lr_warmup_iters < found.train_iters


def real(of: Training, batch: int, **more: Any) -> Any:
    """Megatron-LM's own scheduler, as its training.py makes it of these arguments."""
    module = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    optimizer = type("Optimizer", (), {"param_groups": [{}]})()
    decay = of.lr_decay_iters or of.train_iters
    return module.OptimizerParamScheduler(
        optimizer, 0.0, of.lr, of.min_lr, of.lr_warmup_iters * batch, decay * batch, of.lr_decay_style, 0.1, 0.1,
        of.train_iters * batch, "constant", use_checkpoint_opt_param_scheduler=False,
        wsd_decay_steps=of.wsd_decay_iters * batch, lr_wsd_decay_style="linear", **more,
    )  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_the_rate_is_megatrons(style: str) -> None:
    of = training(lr_decay_style=style, lr_decay_iters=900)
    for sequences in (0, 1, 400, 800, 801, 3000, 7000, 7200, 7900):
        scheduler = real(of, 8)
        scheduler.step(sequences)
        assert rate(of, sequences, 8) == pytest.approx(scheduler.optimizer.param_groups[0]["lr"], rel=1e-12)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("batch", [32, 2, 12])
def test_the_real_scheduler_goes_on_where_it_was(style: str, batch: int) -> None:
    """After 400 iterations of 8, a checkpoint of the old scheduler is loaded by one with the new arguments."""
    old = training(lr_decay_style=style)
    before = real(old, 8)
    before.step(400 * 8)
    found = scheduled(old, OLD, batch, 4096, MEGATRON_COUNTING, ran(400))
    with pytest.raises(AssertionError):  # what the option is for
        real(found.training, batch).load_state_dict(before.state_dict())
    now = real(found.training, batch, override_opt_param_scheduler=True)
    now.load_state_dict(before.state_dict())
    end, steps = 1000 * 8, 0
    while now.num_steps + batch <= end:
        now.step(batch)
        steps += 1
        wanted, got = rate(old, now.num_steps, 8), now.optimizer.param_groups[0]["lr"]
        assert got == pytest.approx(wanted, rel=0.02, abs=2e-6), now.num_steps  # a step more at most, of 250 or more
    assert found.training.train_iters - 400 - steps in (0, 1)


@pytest.mark.parametrize("backend", [MEGATRON_COUNTING, RENUMBERED_COUNTING])
@pytest.mark.parametrize("at", [0, 500, 950])
def test_wsd_decays_over_the_same_tokens_of_longer_sequences(backend: str, at: int) -> None:
    """A step has twice the tokens: what is left of the decay's 100 steps, of which 50 are done at 950, is half."""
    new = after(training(lr_decay_style="WSD"), 8, 8192, backend=backend, run=ran(at))
    done = 50 if at == 950 and backend == MEGATRON_COUNTING else 0
    assert new.wsd_decay_iters == done + (100 - done) // 2


def test_another_length_in_mid_run_turns_the_rate_and_says_so() -> None:
    found = scheduled(training(), OLD, 8, 8192, MEGATRON_COUNTING, ran(500))
    said = " ".join(found.notes)
    assert "6,720" not in said
    assert f"{rate(training(), 4000, 8):.4g} to {rate(found.training, 4000, 8):.4g}" in said
    assert "32,768,000 tokens of the data and not the 16,384,000" in said


def test_a_plan_is_no_run_before_it_took_over() -> None:
    with pytest.raises(InputError, match=r"at_step: is before the plan took over its run \(got 299, need at least 300"):
        ran(300).until(299, 32, 4096)


@st.composite
def chains(draw: Any) -> list[tuple[int, int]]:
    """Steps at which the batch becomes another one, of a run of 1,000 steps of 64 sequences, and those batches."""
    found, step, left = [], 0, Fraction(1000 * 64)
    batch = 64
    for _ in range(draw(st.integers(1, 5))):
        own = draw(st.integers(1, max(1, int(left / batch / 2))))
        step, left = step + own, left - own * batch
        batch = draw(st.integers(1, 512))
        if left <= batch:
            break
        found.append((step, batch))
    return found


@given(chains())
def test_a_chain_of_plans_counts_as_one_run_does(chain: list[tuple[int, int]]) -> None:
    """Sequences are those of every step with its own batch; the run and its decay end after those it was made for, but
    for one step of each plan, since steps are whole."""
    of, history, before = training(lr_warmup_iters=100), History(), Batch(64, 4096)
    seen, last, rounded = 0, 0, 0
    for step, batch in chain:
        run = history.until(step, before.global_batch, 4096)
        found = scheduled(of, before, batch, 4096, MEGATRON_COUNTING, run)
        seen, last = seen + (step - last) * before.global_batch, step
        assert (found.step, found.consumed, found.history.tokens) == (step, seen, seen * 4096)
        of, history, before = found.training, found.history, Batch(batch, 4096)
        rounded += batch
        assert 0 <= (of.train_iters - step) * batch - (64000 - seen) < rounded
        assert of.lr_decay_iters is None or 0 <= of.lr_decay_iters * batch - 64000 < rounded
        assert 0 <= of.lr_warmup_iters * batch - 100 * 64 < rounded
        assert 0 <= of.save_interval * batch - 500 * 64 < rounded


@pytest.mark.parametrize("style", STYLES)
def test_the_real_scheduler_goes_on_through_a_chain(style: str) -> None:
    """64, then 96, then 192 sequences, each plan made of the one before; the rate is that of the first one's tokens."""
    first = of = training(lr_decay_style=style)
    scheduler, history, before = real(of, 64), History(), Batch(64, 4096)
    scheduler.step(333 * 64)
    for step, batch, end in ((333, 96, 500), (500, 192, 584)):
        found = scheduled(of, before, batch, 4096, MEGATRON_COUNTING, history.until(step, before.global_batch, 4096))
        of, history, before = found.training, found.history, Batch(batch, 4096)
        now = real(of, batch, override_opt_param_scheduler=True)
        now.load_state_dict(scheduler.state_dict())
        assert now.num_steps == found.consumed
        for _ in range(step, end):
            now.step(batch)
            got = now.optimizer.param_groups[0]["lr"]
            assert got == pytest.approx(rate(first, now.num_steps, 64), rel=0.01, abs=2e-6)
        scheduler = now
    assert scheduler.num_steps == 333 * 64 + 167 * 96 + 84 * 192


def test_a_scheduler_that_started_anew_counts_from_there() -> None:
    """Its decay ends where that of the first plan does, however often the batch changes behind it."""
    anew = scheduled(training(), OLD, 32, 4096, MEGATRON_COUNTING, ran(400), restarts=True)
    assert (anew.history.sequences, anew.history.scheduled, anew.training.lr_decay_iters) == (3200, 0, 150)
    before = Batch(32, 4096)
    again = scheduled(anew.training, before, 16, 4096, MEGATRON_COUNTING, anew.history.until(450, 32, 4096))
    assert (again.run.sequences, again.run.scheduled) == (4800, 1600)
    assert (again.training.lr_decay_iters, again.training.train_iters) == (300, 450 + 200)


def test_a_run_of_a_chain_that_starts_from_nothing_is_a_whole_one() -> None:
    first = scheduled(training(), OLD, 32, 4096, MEGATRON_COUNTING, ran(400))
    before = Batch(32, 4096)
    whole = scheduled(first.training, before, 16, 4096, MEGATRON_COUNTING, History(), past=first.history)
    plain = scheduled(training(), OLD, 16, 4096, MEGATRON_COUNTING)
    assert whole.training.model_copy(update={"lr_decay_iters": None}) == plain.training
    assert whole.training.lr_decay_iters == plain.training.train_iters
    assert "of the run 32,768,000 -> 32,768,000" in whole.notes[0]


def test_a_length_of_sequences_that_changed_is_counted_in_tokens() -> None:
    """A quarter of the tokens in short sequences, then long ones, then a larger batch of those."""
    longer = scheduled(training(), OLD, 8, 8192, MEGATRON_COUNTING, ran(250))
    assert longer.training.train_iters == 250 + 375
    before = Batch(8, 8192)
    found = scheduled(longer.training, before, 32, 8192, MEGATRON_COUNTING, longer.history.until(450, 8, 8192))
    assert found.run.tokens == 250 * 8 * 4096 + 200 * 8 * 8192
    assert found.training.train_iters == 450 + ceil(175 / 4)
    assert found.training.lr_decay_iters == ceil(625 / 4)
    assert "250 steps of 8 sequences of 4,096 tokens and 200 steps of 8 sequences of 8,192 tokens" in str(found.notes)


def test_what_a_checkpoint_has_seen_changes_its_last_steps() -> None:
    run = ran(400).until(500, 32, 4096)
    assert run.seen(6000).segments == (Segment(400, 3200, 4096), Segment(100, 2800, 4096))
    assert run.seen(3000).segments == (Segment(500, 3000, 4096),)


@given(chains())
def test_a_chain_of_plans_never_runs_out_of_data(chain: list[tuple[int, int]]) -> None:
    """Megatron-LM has --train-iters x batch sequences, and exits at the first multiple of --exit-interval."""
    of, before, history = training(train_iters=1000), Batch(64, 4096), History()
    for step, batch in chain:
        found = scheduled(of, before, batch, 4096, MEGATRON_COUNTING, history.until(step, before.global_batch, 4096))
        of, history, before = found.training, found.history, Batch(batch, 4096)
        needed = found.consumed + (of.train_iters - step) * batch
        assert history.spanned(of.train_iters, batch) * batch in range(needed, needed + batch)


WORDS = ("--load", "CHECKPOINT", MEGATRON_COUNTING.override)


def going_on(plan: Plan, words: Sequence[str]) -> str | None:
    command = target_of(plan.model, plan.job).resume_command
    return command(plan, words) if command is not None else None


def leaving_in(target: str | None, **fields: Any) -> Plan:
    plan = sample_plan("llama2-13b", "h100", **fields)
    return replace(plan, job=plan.job.model_copy(update={"target": target}))


@pytest.mark.parametrize(("target", "said"), [
    (None, "bash launch.sh --load CHECKPOINT --override-opt_param-scheduler"),
    ("bridge", "bash launch.sh checkpoint.load=CHECKPOINT scheduler.override_opt_param_scheduler=true"),
    ("ms-swift", "bash launch.sh --mcore_model CHECKPOINT --finetune false"),
    ("transformers", None), ("accelerate", None), ("llamafactory", None),
])  # fmt: skip
def test_each_target_has_words_of_its_own(target: str | None, said: str | None) -> None:
    assert going_on(leaving_in(target), WORDS) == said


def test_ms_swift_loads_a_checkpoint_of_adapters_as_one() -> None:
    plan = leaving_in("ms-swift")
    adapters = replace(plan, model=sample_model("llama2-13b-lora"))
    assert going_on(adapters, WORDS) == "bash launch.sh --mcore_adapter CHECKPOINT --finetune false"


def test_an_option_that_a_target_has_not_is_not_said_otherwise() -> None:
    assert going_on(leaving_in("bridge"), ("--load", "CHECKPOINT", "--moe-use-upcycling", "--save", "OUT")) is None


def test_who_counts_what() -> None:
    asked = ("transformers", "ms-swift", "bridge", None)
    said = {name: target_of(plan.model, plan.job).counts for name in asked for plan in (leaving_in(name),)}
    assert said == {
        "transformers": STEPS_COUNTING,
        "ms-swift": CHECKPOINTS_COUNTING,
        "bridge": MEGATRON_COUNTING,
        None: MEGATRON_COUNTING,
    }


def test_steps_that_count_on_lose_none() -> None:
    """Trainer goes on at the checkpoint's own step; its decay ends with the run."""
    found = scheduled(training(), OLD, 32, 4096, STEPS_COUNTING, ran(400))
    assert (found.training.train_iters, found.training.lr_decay_iters) == (400 + 600 * 8 // 32, None)
    assert found.training.lr_warmup_iters == 100  # it is done
    assert found.options == ()
    assert found.history == ran(400)
    assert any("turns from" in note for note in found.notes)
    again = scheduled(found.training, Batch(32, 4096), 8, 4096, STEPS_COUNTING, found.history.until(450, 32, 4096))
    assert again.training.train_iters == 450 + 400
    anew = scheduled(found.training, Batch(32, 4096), 8, 4096, STEPS_COUNTING, History(), past=found.history)
    assert (anew.training.train_iters, anew.training.lr_warmup_iters) == (1000, 100)
