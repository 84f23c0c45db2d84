"""The plan behind a checkpoint: what its folder says in the place of what a given plan says."""

from __future__ import annotations

from dataclasses import replace

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.choices import ZERO_STAGES, ZeroStage
from symconfig.plans.degrees import Degrees
from symconfig.plans.plan import Plan, Target
from symconfig.runs.checkpoint.folder import Checkpoint
from symconfig.runs.checkpoint.kinds import between
from symconfig.runs.checkpoint.pickled import Plain

# A model's fields, and their names in Megatron-LM's arguments or in config.json.
SIZES = (
    ("num_hidden_layers", "num_layers"),
    ("hidden_size", "hidden_size"),
    ("intermediate_size", "ffn_hidden_size"),
    ("num_attention_heads", "num_attention_heads"),
    ("num_key_value_heads", "num_query_groups"),
    ("num_nextn_predict_layers", "mtp_num_layers"),
    ("num_hidden_layers", "num_hidden_layers"),
    ("vocab_size", "vocab_size"),
)
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def supposed(checkpoint: Checkpoint, like: Plan) -> Plan:
    """Suppose the plan of the run that saved it.

    It is `like`, but for what the folder says (degrees, the kind of optimizer, batch, framework and release). What it
    does not say, as the model, is taken to be as in `like`.
    """
    best = like.best
    target = best.target
    if target.backend not in checkpoint.frameworks:
        other = checkpoint.frameworks[0]
        target = replace(target, backend=other, version=BACKENDS[other].releases.of(like.job))
    options = replace(best.options, zero_stage=_stage(checkpoint, like))
    batch = best.batch
    for name, key in (("global_", "global_batch_size"), ("seq_length", "seq_length")):
        if isinstance(value := checkpoint.says.get(key), int):
            batch = replace(batch, **{name: value})
    target = replace(target, version=_release(checkpoint, target))
    run = replace(best, target=target, options=options, batch=batch, parallel=_parallel(checkpoint, best.parallel))
    return replace(like, model=_model(checkpoint, like.model), best=run)


def _model(checkpoint: Checkpoint, like: ModelDescriptor) -> ModelDescriptor:
    """Return the model with the folder's sizes, so that a checkpoint of another model shows."""
    says = checkpoint.says
    update: dict[str, object] = {ours: says[theirs] for ours, theirs in SIZES if isinstance(says.get(theirs), int)}
    if like.num_key_value_heads == like.num_attention_heads or like.latent is not None:
        update.pop("num_key_value_heads", None)  # Megatron-LM's are 1 where no groups were asked for
    if like.intermediate_size == 0:
        update.pop("intermediate_size", None)
    if isinstance(untied := says.get("untie_embeddings_and_output_weights"), bool):
        update["tie_word_embeddings"] = not untied
    if "num_experts" in says:
        update["experts"] = _experts(says["num_experts"], like)
    return like.model_copy(update=update)


def _experts(number: Plain, like: ModelDescriptor) -> Experts | None:
    """Return as many experts as the folder has: none where none are, and some where the plan's model has none."""
    if not isinstance(number, int) or number == 0:
        return None
    one = like.experts or Experts(
        num_experts=number,
        num_experts_per_tok=1,
        norm_topk_prob=True,
        moe_intermediate_size=like.intermediate_size or 1,
    )
    return one.model_copy(update={"num_experts": number})


def _parallel(checkpoint: Checkpoint, like: Degrees) -> Degrees:
    stated = {name: checkpoint.degrees[name] for name in DEGREES if name in checkpoint.degrees}
    if stated and "vpp" not in stated and "pp" in stated and stated["pp"] != like.pp:
        stated["vpp"] = 1
    return replace(like, **stated)


def _stage(checkpoint: Checkpoint, like: Plan) -> ZeroStage:
    """Return the stage, ZeRO's, 1 for Megatron's distributed optimizer."""
    stage = like.best.options.zero_stage
    zero_stage, sharded = (checkpoint.says.get(name) for name in ("zero_stage", "use_distributed_optimizer"))
    if (named := next((each for each in ZERO_STAGES if each == zero_stage), None)) is not None:
        return named
    if checkpoint.kind == "fsdp_dtensor":
        return stage if stage >= 2 else 2
    if sharded is True:
        return 1
    return 0 if sharded is False else stage


def _release(checkpoint: Checkpoint, like: Target) -> str:
    """Return the given release where it can have written the checkpoint, else the nearest that can.

    Megatron-LM's formats bound their releases; DeepSpeed writes its own, which need be none that is known here.
    """
    if not BACKENDS[like.backend].names_release and between(like.version, checkpoint.since, checkpoint.until):
        return like.version
    return checkpoint.until or checkpoint.since or like.version
