"""Target ms-swift-rlhf: the YAML of `megatron rlhf`, ms-swift's GRPO, with vLLM on the same GPUs, DPO, KTO and rewards
with Megatron-Core.

Arguments are those of the target ms-swift (`ms_swift`), beside those of ms-swift 4.6.0 for a step
(`megatron/arguments/megatron_args.py`, RLHFMegatronArgumentsMixin). A micro-batch is so many sequences, not padded
unless preferences are. The reference is a second model with the policy's layout; of preferences it is read before each
forward of the policy (`megatron/trainers/{dpo,kto}_trainer.py`), and beside adapters it is the model without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.plans.plan import Plan
from symconfig.render import learning, ms_swift, step_words
from symconfig.render.learning import Compares, Learns

NAME = "ms-swift-rlhf"
DOES = "ms-swift's YAML for `megatron rlhf`: GRPO with vLLM on the same GPUs, DPO, KTO, rewards, and its launch.sh"
ASSUMES = {"backend": "megatron"}
COUNTS = counting.CHECKPOINTS_OWN
UNSAID = ms_swift.UNSAID
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "dapo": {"loss_type": "dapo"},
    "gspo": {"importance_sampling_level": "sequence"},
    "rloo": {"advantage_estimator": "rloo"},
    "reinforce_plus_plus": {"advantage_estimator": "reinforce_plus_plus"},
}
LEARNS = Learns(
    algorithms=tuple(_ALGORITHMS),
    engines=("vllm",),
    sequences="alone",
    reference="resident",
    sleep_levels=(2, 1),
)
COMPARES = Compares(
    losses=("sigmoid", "hinge", "ipo", "kto", "apo_zero_unpaired", "reward"),
    batching=("padded", "padding_free"),
    first=("model", "reference"),
)


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError with all that ms-swift cannot be told, InputError."""
    learning.refuse(plan, COMPARES if plan.job.rl is None else LEARNS, NAME, _problems(plan))
    trained = ms_swift.variables(plan)
    return {
        **trained,
        "command_name": "rlhf",
        "sections": sections(plan, trained["sections"]),
        "phases": step_words.phases(plan),
        "notes": tuple(step_words.notes(plan)),
    }


def sections(plan: Plan, trained: Any) -> dict[str, dict[str, Any]]:
    """Return the arguments by groups. trained: those of the update alone."""
    groups = {name: dict(values) for name, values in trained.items()}
    compares = plan.job.preference is not None
    for values in groups.values():
        for name in ("micro_batch_size", "global_batch_size") if compares else ():
            if name in values:
                values[name] //= learning.per_example(plan)
        if values.pop("packing", None):
            values["padding_free"] = not compares
    return groups | _preference(plan) if compares else _step(plan, groups)


def _preference(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return what training on preferences is told."""
    preference = learning.preference(plan)
    scaled = {"loss_type": preference.loss, "beta": preference.beta} if preference.means.scaled else {}
    return {"PREFERENCE": {"rlhf_type": "rm" if preference.means.scores else plan.task, **scaled}}


def _step(plan: Plan, groups: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what a step of reinforcement learning is told, with what of the update is in `found`."""
    rl, step = learning.section(plan), plan.rl[0] if plan.rl else None
    for values in groups.values():
        if "max_length" in values:
            values["max_length"] = rl.prompt_length.max
    away = step.away if step else ()
    groups["GRPO"] = {
        "rlhf_type": "grpo",
        **_ALGORITHMS[rl.algorithm],
        **learning.clipped(rl, "epsilon", "epsilon_high"),
        "beta": 0.001 if rl.reference else 0.0,
        "num_iterations": rl.epochs,
        "num_generations": rl.samples,
        "steps_per_generation": rl.updates,
        "max_completion_length": rl.response_length.max,
        "temperature": 1.0,
    }
    groups["ROLLOUT"] = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_len": rl.longest,
        "vllm_max_num_seqs": rl.rollout.max_num_seqs,
        "sleep_level": step.sleep_level if step else LEARNS.sleep_levels[0],
        "offload_model": learning.WEIGHTS in away,
        "offload_optimizer": learning.STATES in away,
    }
    if step is not None:
        groups["ROLLOUT"] |= {
            "vllm_tensor_parallel_size": step.rollout_tp,
            "vllm_gpu_memory_utilization": step.memory_share,
        }
    return groups


def _problems(plan: Plan) -> Iterator[Problem]:
    rl, dp, micro = plan.job.rl, plan.best.parallel.dp, plan.best.batch.micro
    if rl is None:
        return
    if rl.entropy:
        yield Problem("ms-swift's loss with Megatron-Core has no entropy", field="rl.entropy", got="true", need="false")
    if rl.prompts % (dp * micro):
        what = "ms-swift divides the prompts of a step over data-parallel ranks and micro-batches"
        numbers = [number for number in range(1, rl.prompts + 1) if rl.prompts % number == 0]
        field, got, pins = "mbs", str(micro), tuple(f"mbs={number}" for number in numbers if number < micro)
        if rl.prompts % dp:
            field, got, pins = "dp", str(dp), tuple(f"dp={number}" for number in numbers)
        yield Problem(what, field=field, got=got, need=f"a divisor of {rl.prompts}", pins=pins)
