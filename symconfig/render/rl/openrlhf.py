"""Target openrlhf: OpenRLHF's commands: train_ppo_ray, whose actor runs with DeepSpeed's ZeRO beside vLLM, and
train_dpo.

Names and defaults are those of OpenRLHF 0.11.2 (`cli/train_ppo_ray.py`, `cli/train_dpo.py`, `utils/deepspeed/`). In
reinforcement learning micro-batches are packed up to a number of tokens (`train.dynamic_batch_enable`). Of pairs,
chosen and rejected answers are in one forward, and the reference is a second model, sharded where ZeRO-3 shards the
policy, beside adapters, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.formats import openrlhf as formats
from symconfig.formats.keys import write
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, learning, shared, trainer
from symconfig.render.learning import Compares, Learns, Rewarding
from symconfig.render.shared import STEPS_COUNTING
from symconfig.render.target import Target, ignored

LEARNS = Learns(
    algorithms=tuple(formats.ADVANTAGES),
    engines=("vllm",),
    placements=("colocated", "split"),
    away=((), (learning.STATES,)),  # utils/deepspeed/deepspeed_utils.py, offload_deepspeed_states
    reference="resident",  # --ref.offload is DeepSpeed's offload_param, which ZeRO-3 alone has
    rewards={
        "colocated": Rewarding(by="workers"),
        "apart": Rewarding(by="workers", overlaps="training"),
        "server": Rewarding(by="service"),
    },
    sleep_levels=(1,),
    critic="apart",
    reads_apart=True,
)
COMPARES = Compares(losses=("sigmoid", "ipo"), batching=("padded", "padding_free"), copies=True)
_AWAY = "with ZeRO-3, --ref.offload keeps it on the host"


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables: release, arrays, notes, data, reward model and URL. Environment variables and a
    note on padding only without RL; critic (see `learning.critic`) only with RL. reward_nodes, critic_nodes: [nodes,
    GPUs of each] of their own; zeros without.
    """
    arrays, training = _arrays(plan), plan.training
    return {
        "framework": f"OpenRLHF {formats.OPENRLHF.release} with DeepSpeed",
        "release": formats.OPENRLHF.release,
        "arrays": arrays,
        "variables": () if plan.job.rl else deepspeed.environment_variables(plan),
        "notes": (
            *shared.step_notes(plan, _AWAY),
            *deepspeed.notes(plan),
            *(() if plan.job.rl else trainer.padded(plan, "--data.max_len")),
        ),
        "data": ",".join(training.data_path),
        "reward_model": learning.reward_model(plan),
        "reward_url": learning.reward_url(plan),
        "reward_nodes": list(learning.reward_nodes(plan)),
        "critic": None if plan.job.rl is None else learning.critic(plan),
        "critic_nodes": list(learning.own_nodes(plan, (plan.job.rl and plan.job.rl.critic_gpus) or 0)),
    }


def words(plan: Plan) -> list[str]:
    """Return all options as words."""
    return [text for lines in _arrays(plan).values() for line in lines for text in line]


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what OpenRLHF or DeepSpeed (`shared.problems`) does not support. OpenRLHF lacks other optimizers than Adam,
    models that packing excludes, some schedules and checkpoints of other runs; for RL also a reward model or critic
    with GPUs of its own beside a colocated engine, and such a critic with a colocated reward model.
    """
    yield from shared.problems(plan)
    rl = plan.job.rl
    yield from learning.of_adam(plan, "OpenRLHF")
    if _packs(plan):
        yield from learning.of_transformers(plan, "OpenRLHF")
    if rl is not None:
        rewards, gpus = rl.reward_model and rl.reward_model.placement, rl.critic_gpus
        if rl.placement == "colocated":
            what, need = "OpenRLHF's models are all on the engine's GPUs, or none", "placement: split beside it"
            if rewards == "apart":
                yield Problem(what, field="rl.reward_model.placement", got="apart", need=need)
            if gpus is not None:
                yield Problem(what, field="rl.critic_gpus", got=str(gpus), need=need)
        if gpus is not None and rewards == "colocated":
            what = "OpenRLHF's network of rewards is beside the actor where its critic is, too"
            yield Problem(what, field="rl.reward_model.placement", got="colocated", need="apart or server")
    yield from learning.of_schedule(plan, "OpenRLHF", formats.SCHEDULES)
    yield from learning.of_checkpoints(plan, "OpenRLHF goes on from its own checkpoints")


def _packs(plan: Plan) -> bool:
    """Return whether sequences are packed without padding in a micro-batch: always for RL, else if the job says so."""
    return plan.job.rl is not None or shared.batching(plan) == "padding_free"


def _arrays(plan: Plan) -> dict[str, list[tuple[str, ...]]]:
    """Return {array: its options with values}; CRITIC and ADAPTER only if the plan has one. Batches of preference
    training are in pairs. The adapter's alpha becomes an int. Raises as `target_modules` for an adapter.
    """
    rl, best, lora = plan.job.rl, plan.best, plan.model.adapter
    step, each = plan.rl[0] if plan.rl else None, learning.per_example(plan)
    run = learning.run_of(plan, target_modules(plan.model) if lora else ())
    run.packs = _packs(plan)
    run.attention = "flash_attention_2" if run.packs else deepspeed.attention(plan)
    run.actor.grad_dtype = "fp32" if best.configuration.grad_bytes == 4 else best.configuration.precision
    run.preference, run.pairs = plan.job.preference, best.configuration.global_batch // each
    run.actor.micro = best.configuration.micro // each
    # Beside an engine of its own the actor may have the reference alone with it.
    run.roles_apart = bool(rl and (rl.critic_gpus or (step and step.reward and step.reward.gpus)))
    if lora is not None:
        run.adapter.lora_alpha, run.adapter.quantised = int(lora.lora_alpha), lora.method == "qlora"
    return {
        name: learning.options(write(table, run))
        for name, table in {**(formats.STEP if rl else formats.PAIRS), **formats.BOTH}.items()
        if (name != "CRITIC" or (rl and rl.has_critic)) and (name != "ADAPTER" or lora)
    }


TARGETS = (
    Target(
        name=formats.OPENRLHF.name,
        does="OpenRLHF's commands for reinforcement learning with DeepSpeed and vLLM (train.sh) "
        "and for DPO (launch.sh)",
        variables=variables,
        problems=_problems,
        words=words,
        assumes={"backend": "deepspeed"},
        learns=LEARNS,
        compares=COMPARES,
        counts=STEPS_COUNTING,
        ignored_fields=ignored(
            "OpenRLHF",
            split="OpenRLHF takes a data set for training and another for evaluation",
            eval_iters="OpenRLHF evaluates on a data set that --eval.dataset names",
            distributed_timeout_minutes="OpenRLHF waits 60 minutes",
            train_iters="OpenRLHF counts --train.num_episodes passes over its data, of pairs --train.max_epochs",
        ),
    ),
)
