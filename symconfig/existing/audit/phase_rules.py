"""Rules about the phases of a step of reinforcement learning: they need the model of costs, and a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symconfig.errors import Problem
from symconfig.existing.audit.judge import Judged
from symconfig.existing.rules.rl import DYNAMIC
from symconfig.existing.rules.rule import Rules
from symconfig.format import gib
from symconfig.plans.plan import Plan
from symconfig.plans.rl import PlannedPhase, surprised
from symconfig.solve.budget import surprise

_GENERATES = ("generation", "weights to the engine")
_READS = ("log-probabilities", "reference", "values")
_REFERENCE = "reference"  # a part of a phase
PHASES: Rules[Judged] = Rules()


@PHASES.rule(
    "error",
    "The engine's share of the memory leaves no room for what is trained",
    "While it generates, the engine takes its share of the whole GPU, beside weights, gradients and optimizer state "
    "that are not offloaded; as it wakes, the new weights lie beside its own. It stops as it wakes, out of memory "
    "(vllm#15254, verl#302, NeMo-RL#191). It is predicted, as memory is by the planner.",
    DYNAMIC + "actor_rollout_ref.rollout.gpu_memory_utilization=0.92",
)
def engine_share_too_large(judged: Judged) -> Iterator[Problem]:
    yield from _too_full(judged.plan, _GENERATES, "a smaller share, or offload of the actor's parameters and optimizer")


@PHASES.rule(
    "error",
    "Log-probabilities are computed of too many tokens at once",
    "Logits of every token and word of the vocabulary are made, and copies of them for the entropy, which is reported "
    "whether or not the loss has it (verl#1007, verl#1100). Their micro-batch is said apart from the update's: "
    "log_prob_micro_batch_size_per_gpu or log_prob_max_token_len_per_gpu of verl's rollout and ref, "
    "--rollout.max_tokens_per_gpu of OpenRLHF's, logprob_mb_tokens of NeMo-RL's; slime has the update's. It is "
    "predicted, as memory is by the planner.",
    DYNAMIC + "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=196608",
)
def log_probabilities_too_large(judged: Judged) -> Iterator[Problem]:
    if not judged.by_assumed_lengths:
        yield from _too_full(judged.plan, _READS, "fewer tokens in a micro-batch of log-probabilities")


@PHASES.rule(
    "error",
    "An update needs more memory than the GPU has",
    "All of the trained model is on the GPU, with the activations and logits of a micro-batch, and what of the other "
    "models is not offloaded. It is predicted, as memory is by the planner.",
    DYNAMIC + "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=81920 "
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384 data.train_batch_size=8192 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=2048",
)
def update_out_of_memory(judged: Judged) -> Iterator[Problem]:
    if not judged.by_assumed_lengths:
        ways = "fewer tokens in a micro-batch, or more ranks for a sequence"
        updates = [phase.name for phase in judged.plan.steps[0].phases if phase.name not in (*_GENERATES, *_READS)]
        yield from _too_full(judged.plan, updates, ways)


@PHASES.rule(
    "warning",
    "The reference stays on the GPU, which is too full",
    "A frozen copy of the actor is needed for the KL term alone, and rests in every other phase. verl's Megatron "
    "workers keep it on the GPU unless ref.megatron.param_offload is on (by default as the actor's); its FSDP workers "
    "offload it always (verl#337, verl#7182).",
    DYNAMIC + "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "
    "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.gpu_memory_utilization=0.4 "
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096 "
    "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full "
    "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform "
    "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1",
)
def reference_not_offloaded(judged: Judged) -> Iterator[Problem]:
    plan = judged.plan
    for phase in plan.steps[0].phases:
        rests = phase.holds.get(_REFERENCE, 0.0) if phase.name != "reference" else 0.0
        if rests and phase.bytes > plan.usable_bytes >= phase.bytes - rests:
            got, need = f"{gib(phase.bytes)} GiB, of which it has {gib(rests)}", f"{gib(plan.usable_bytes)} GiB usable"
            what = f"keeps the reference on the GPU, which is too full in the phase {phase.name}"
            around = judged.run.around
            hint = around.trainer.offload if around is not None else None
            yield Problem(what, field="memory", got=got, need=need, hint=hint)
            return


@PHASES.rule(
    "warning",
    "A phase is near to the GPU's memory, or above it with sequences as long as was assumed",
    "Of the GPU's memory a margin must stay free (--memory-margin), and all of it must do for what measured runs take "
    "beyond their prediction, but for 1 in 20 of them: the judgement of the planner (limits.memory_risk). Where "
    "nothing says how long sequences are in the mean, half of the longest is assumed, and micro-batches of so many "
    "sequences hold more tokens or fewer: "
    "--prompt-length and --response-length say it.",
    DYNAMIC + "actor_rollout_ref.rollout.gpu_memory_utilization=0.78",
)
def phase_has_little_room(judged: Judged) -> Iterator[Problem]:
    plan = judged.plan
    if any(reference_not_offloaded(judged)):
        return
    ratio = surprise(plan.model, plan.cluster, plan.job.limits.memory_risk)
    over = [
        phase
        for phase in plan.steps[0].phases
        if phase.bytes > plan.usable_bytes or surprised(phase.holds, ratio) > _memory(plan)
    ]
    sure = [phase for phase in over if phase.name in _GENERATES or not judged.by_assumed_lengths]
    if over and not any(phase.bytes > _memory(plan) for phase in sure):
        hint = "--prompt-length and --response-length, as they are in the mean" if judged.by_assumed_lengths else None
        yield _fullest(plan, over, "may run out of memory", hint)


def _too_full(plan: Plan, names: Sequence[str], hint: str) -> Iterator[Problem]:
    over = [phase for phase in plan.steps[0].phases if phase.name in names and phase.bytes > _memory(plan)]
    if over:
        yield _fullest(plan, over, "runs out of memory", hint)


def _memory(plan: Plan) -> float:
    return plan.cluster.gpu.memory_bytes.value


def _fullest(plan: Plan, phases: Sequence[PlannedPhase], what: str, hint: str | None) -> Problem:
    """Name the fullest of phases that are too full, by what is on the GPU in it."""
    worst = max(phases, key=lambda phase: phase.bytes)
    parts = sorted(worst.holds.items(), key=lambda item: -item[1])[:2]
    most = " and ".join(f"{name} {gib(value)} GiB" for name, value in parts)
    others = [phase.name for phase in phases if phase is not worst]
    rest = f", and {', '.join(others)} {'is' if len(others) == 1 else 'are'} too full" if others else ""
    return Problem(
        f"{what} in the phase {worst.name}{rest}",
        field="memory",
        got=f"{gib(worst.bytes)} GiB, of which {most}",
        need=f"{gib(plan.usable_bytes)} GiB usable of {gib(_memory(plan))} GiB",
        hint=hint,
    )
