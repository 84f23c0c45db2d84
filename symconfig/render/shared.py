"""What several targets share: refusals by a framework's constraints, the weights to start from, images, counting, the
nodes, modules that options need, and notes on a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Unpack

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, Problem, Right
from symconfig.format import gib, picked, several
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.constraint import Constraint, failing, in_force
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED_RELEASE
from symconfig.frameworks.known import BACKENDS, facts_of
from symconfig.frameworks.megatron import environment
from symconfig.frameworks.programs import of_program
from symconfig.plans.plan import Plan


def of_fsdp(plan: Plan) -> bool:
    """Return whether the plan is for PyTorch's FSDP."""
    return BACKENDS[plan.best.target.backend].told_by is Medium.CODE


def program_problems(plan: Plan, target: str) -> tuple[Problem, ...]:
    """Return the problems of a plan with the constraints of a target's program; () for a target without any."""
    return tuple(_failed(plan, plan.best.target.backend, of_program(target)).values())


def refused(plan: Plan, backend: str, release: str) -> dict[Constraint, Problem]:
    """Return {constraint: problem} for each constraint of a framework's release that the plan fails, in the table's
    order.

    backend: the framework's name; the plan may be for another one.
    """
    return _failed(plan, backend, in_force(BACKENDS[backend].constraints, release))


def _failed(plan: Plan, backend: str, table: tuple[Constraint, ...]) -> dict[Constraint, Problem]:
    fixed, point = facts_of(plan.model, plan.cluster, plan.job, backend), plan.best.configuration
    return {one: one.problem(fixed, point) for one in failing(table, fixed, point)}


def refuse(plan: Plan, *others: Problem) -> None:
    """Raise InfeasibleError with all that DeepSpeed cannot run, and with `others`; nothing if there is neither."""
    if faults := (*problems(plan), *others):
        raise InfeasibleError(faults)


def training_problem(plan: Plan, name: str, what: str, **right: Unpack[Right]) -> Problem:
    """Return the problem that a program does not take the value of a field of `training`; `got` is the value, several
    with blanks between. what: the sentence. right: `need` and `hint`.
    """
    value = getattr(plan.training, name)
    got = " ".join(value) if isinstance(value, tuple) else str(value)
    return Problem(what, field=f"training.{name}", got=got, **right)


def data_problems(plan: Plan, reader: str) -> Iterator[Problem]:
    """Yield a problem if the data files have weights, which `reader` does not support; `need`: the
    files without them.
    """
    if plan.training.blended:
        files = " ".join(plan.training.data_path[1::2])
        yield training_problem(plan, "data_path", f"{reader} takes files without weights", need=files)


def problems(plan: Plan) -> tuple[Problem, ...]:
    """Return all of the plan that DeepSpeed does not run or Transformers' configuration of the model cannot express."""
    return (*refused(plan, "deepspeed", DEEPSPEED_RELEASE).values(), *model_problems(plan))


def model_problems(plan: Plan) -> Iterator[Problem]:
    """Yield each field of the plan's model that Transformers' configuration lacks; nothing with a vision tower, and not
    num_labels if the program adds the head."""
    from symconfig.descriptor.write import lost_fields  # plans for Megatron-LM do without it

    unwritten = () if plan.model.vision is not None else lost_fields(plan.model)
    adds_head = plan.job.rl is not None or (plan.job.preference is not None and plan.job.preference.means.scores)
    yield from (each for each in unwritten if not (adds_head and each.field == "num_labels"))


def pretrains(plan: Plan) -> bool:
    """Return whether all weights are trained, with a loss over every token."""
    return plan.model.adapter is None and plan.job.task in (None, "pretrain")


def loss_of(plan: Plan) -> str:
    """Return "pt" if the loss is over every token, "sft" if over answers only; as fine-tuning programs call it."""
    return "pt" if pretrains(plan) else "sft"


def fine_tuned(plan: Plan) -> bool:
    """Return whether training starts from existing weights."""
    return not pretrains(plan) or plan.job.training.hf_weights is not None


def batching(plan: Plan) -> str | None:
    """Return how the job's sequences become micro-batches: "packed", "padded" or "padding_free"; None: not said."""
    return None if plan.job.sequences is None else plan.job.sequences.batching


def hf_weights(plan: Plan) -> str | None:
    """Return the Hugging Face folder or id to start from: the job's, else for fine-tuning (also adapters) the model's
    id, None if it has none. None for pretraining from random weights.
    """
    if plan.job.training.hf_weights is not None or not fine_tuned(plan):
        return plan.job.training.hf_weights
    return plan.model.huggingface_id


def outer_type(model: ModelDescriptor) -> str:
    """Return the model_type of the whole checkpoint: with a vision tower the tower model's, else the
    language model's.
    """
    return model.model_type if model.vision is None else model.vision.model_type


_LLAMA3_VOCABULARY = 128256  # the tokenizer tells Llama 3, 3.1 and 3.3 from their forerunners of the same model_type


def template(model: ModelDescriptor, known: Mapping[str, str], llama3: str) -> str | None:
    """Return the chat template of the model's family, with a vision tower the tower's; None if it has none. known:
    templates by model_type, but for Llama 3, which is known by its vocabulary and has `llama3`.
    """
    if model.vision is None and model.model_type == "llama" and model.vocab_size == _LLAMA3_VOCABULARY:
        return llama3
    return known.get(outer_type(model))


def pixels(plan: Plan) -> int | None:
    """Return the largest number of pixels per image; None if the tower takes one fixed size, or there is none."""
    vision = plan.model.vision
    return vision.image_size**2 if vision is not None and vision.any_resolution else None


def image_notes(plan: Plan, name: str | None = None) -> tuple[str, ...]:
    """Return sentences about images that the files cannot ensure: their number, and with `name` and a tower of any size
    their pixels. () without a vision tower. name: the program's option for their size.
    """
    vision = plan.model.vision
    if vision is None:
        return ()
    sentences = [
        f"The prediction is for {vision.images_per_sequence:g} images of {vision.tokens} tokens in every sequence: how "
        "many there are is up to the data"
    ]
    if name is not None and vision.any_resolution:
        sentences.append(f"{name} shrinks larger images; smaller ones become fewer tokens than planned")
    return tuple(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How a program counts a run that goes on from a checkpoint: iterations, sequences, the schedule's place.

    renumbers: steps are numbered anew by the sequences that the checkpoint has seen; else they go on from its own.
    schedules_steps: the learning rate's scheduler counts steps; else sequences.
    own_schedule: the schedule is the checkpoint's, whatever the files say.
    override: the option without which the program stops where its schedule is not the checkpoint's; "": it needs none.
    spans: data are laid out for the last iteration x batch, and end too early behind another batch.
    """

    renumbers: bool = False
    schedules_steps: bool = False
    own_schedule: bool = False
    override: str = ""
    spans: bool = False


# Megatron-LM counts iterations from the checkpoint on, but its scheduler counts sequences (training.py,
# get_optimizer_param_scheduler: lr_decay_steps = lr_decay_iters x global_batch_size; checkpointing.py keeps
# consumed_train_samples), and asserts that a checkpoint's schedule is that of the arguments, unless told which one
# counts (megatron/core/optimizer_param_scheduler.py, _check_and_set); core_v0.12 to core_v0.19.
MEGATRON_COUNTING = Counting(override="--override-opt_param-scheduler", spans=True)
# ms-swift 4.6.0 does the same with the checkpoint's own schedule (megatron/utils/megatron_lm_utils.py).
CHECKPOINTS_COUNTING = Counting(own_schedule=True)
# train.py of DeepSpeed's files.
RENUMBERED_COUNTING = Counting(renumbers=True)
# Transformers' Trainer (trainer.py, _inner_training_loop: global_step of trainer_state.json, and max_steps in all),
# Accelerate's scripts, LLaMA-Factory, which is a Trainer.
STEPS_COUNTING = Counting(schedules_steps=True)


PACKING = (
    "The job's packing enters the predicted time only: attention is counted within documents. The files here do "
    "not pack; the data decides what a sequence holds"
)


def modules_wanted(plan: Plan) -> tuple[dict[str, str], ...]:
    """Return {option, label, module, attribute, named, why, hint} for each Python module that used options of a
    Megatron plan need, in the order of the options. attribute: a name that the module must have; "": any build will do.
    named: both in words. The same module may appear for several options; needs that are no modules are left out.
    """
    return tuple(
        {"option": option.name, "label": option.label, "attribute": need.attribute or ""}
        | picked(need, "module", "named", "why", "hint")
        for option in environment.used(plan)
        for need in option.needs
        if need.module is not None
    )


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a run: `count` of them with `gpus` each."""

    count: int
    gpus: int


def nodes(plan: Plan) -> Nodes:
    """Return the fewest nodes with equally many GPUs each that make up the world size, none with more than the
    cluster's.
    """
    total, most = plan.best.configuration.world_size, plan.cluster.gpus_per_node
    count = -(-total // most)
    while total % count:
        count += 1
    return Nodes(count, total // count)


def step_notes(plan: Plan, moved: str = "") -> Iterator[str]:
    """Yield sentences about an RL or preference step to read before the first start; nothing for other jobs. For
    preferences only the size of a reference on the GPU, if there is one, with `moved`, how it could be taken off. For
    RL: no KL term, the reward model, and a generation rate that is predicted.
    """
    if (rl := plan.job.rl) is None:
        if plan.tuned and (copy := plan.tuned[0].phases[-1].holds.get("reference")):
            yield f"The reference is on the GPU in every phase, {gib(copy)} GiB" + (f"; {moved}" if moved else "")
        return
    if not rl.reference:
        yield "There is no KL term, and so no reference model"
    yield from (sentence.removesuffix(".") for sentence in rewards(plan))
    if plan.rl and plan.rl[0].generated_per_s_per_gpu and rl.rollout.tokens_per_s_per_gpu is None:
        yield (
            f"Generation is predicted by a model, at {plan.rl[0].generated_per_s_per_gpu:,.0f} tokens/s on each GPU; "
            "plan again with rl.rollout.tokens_per_s_per_gpu of your first steps' log"
        )


def rewards(plan: Plan) -> Iterator[str]:
    """Yield a sentence on where the reward model runs; nothing without one. Without a planned one it is the URL's
    server.
    """
    named, own = plan.job.rl.reward_model if plan.job.rl else None, plan.rl[0].reward if plan.rl else None
    if named is None:
        return
    if own is None:
        yield f"Rewards come from {named.url}, for which nothing is counted."
        return
    name = "a network of the actor's size" if named.model is None else named.model.removesuffix(".yaml")
    where = f"{several(own.gpus, 'GPU')} of its own" if own.gpus else "the GPUs that train"
    engines = f"engines on {several(own.tp, 'GPU')} each, with {own.memory_share:g} of the memory"
    yield f"Rewards: {name} on {where}, by {engines if own.tp else 'workers'}."
