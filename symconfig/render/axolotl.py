"""Target axolotl: the YAML of `axolotl.cli.train` for (pre-)training, whole or by adapters, with the DeepSpeed JSON or
in the shards of FSDP 2.

Keys are those of Axolotl 0.18 (`utils/schemas/`); it starts Transformers' Trainer, and tells Accelerate itself of
DeepSpeed or FSDP (`utils/trainer.py`, prepare_optim_env).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace as Run
from typing import Any

from symconfig.descriptor.task import PLAIN
from symconfig.errors import Problem
from symconfig.formats.keys import write
from symconfig.formats.tuners import AXOLOTL, AXOLOTL_WRITTEN
from symconfig.frameworks import counting
from symconfig.plans.plan import Plan
from symconfig.render import accelerate, deepspeed, refusals, trainer, tuning
from symconfig.render.files import File
from symconfig.render.refusals import of_fsdp
from symconfig.render.target import Target

_DEMO = {"path": "mhenrichsen/alpaca_2k_test", "type": "alpaca"}  # of its own examples


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables. Raises InfeasibleError for what Axolotl does not support."""
    return {
        **tuning.variables(plan, "Axolotl", AXOLOTL.release, *_problems(plan)),
        "sections": sections(plan),
        "notes": (*deepspeed.notes(plan), *trainer.padded(plan, "sequence_len")),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON; nothing for FSDP, which the YAML configures."""
    return iter(()) if of_fsdp(plan) else tuning.texts(plan)


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML's fields by section."""
    best, training, arguments = plan.best, plan.training, tuning.arguments(plan)
    for name in arguments.pop("report_to", ()):
        arguments["use_tensorboard" if name == "tensorboard" else "use_wandb"] = True
    if training.loads_its_own:
        arguments["auto_resume_from_checkpoints"] = True
    texts_alone = plan.model.adapter is None and plan.job.task in (None, "pretrain")  # which fill sequences
    kind = "completion" if texts_alone else "chat_template"
    data = Run(
        sets=[{"path": path, "ds_type": "json", "type": kind} for path in training.data_path] or [_DEMO],
        length=best.batch.seq_length,
        packs=texts_alone or _packs(plan),
        held_out=training.held_out if training.eval_iters else None,
    )
    shards = None
    if of_fsdp(plan):
        config = {name.removeprefix("fsdp_"): value for name, value in accelerate.shards(plan)["fsdp_config"].items()}
        copies = None if best.shard_ranks is None else best.options.instances
        shards = Run(version=config.pop("version"), config=config, copies=copies, ranks=best.shard_ranks)
    run = tuning.run_of(plan, data=data, shards=shards)
    run.attention = "flash_attention_2" if _packs(plan) else run.attention
    return {**{name: write(table, run) for name, table in AXOLOTL_WRITTEN.items()}, "train": AXOLOTL.spelled(arguments)}


def _packs(plan: Plan) -> bool:
    return plan.job.sequences is not None and plan.job.sequences.batching == "packed"


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what Axolotl does not support, in addition to limits of the Trainer."""
    if plan.job.sequences is not None and plan.job.sequences.batching == "padding_free":
        what, need = "this target pads sequences, or packs them", "padded or packed"
        yield Problem(what, field="sequences.batching", got="padding_free", need=need)
    if _packs(plan) and deepspeed.attention(plan) == "eager":
        what = "Axolotl keeps packed sequences apart by flash attention alone"
        yield Problem(what, field="attention", got="eager", hint="--target llamafactory")
    if plan.model.model_type == "nemotron_h" and plan.best.options.recompute.granularity != "none" and not _packs(plan):
        what = "Axolotl recomputes layers of this family only where sequences are packed"
        yield Problem(what, field="recompute", got="full", pins=("recompute=none",))
    yield from refusals.data_problems(plan, "Axolotl")


TARGET = Target(
    name="axolotl",
    does="Axolotl's YAML for (pre-)training, LoRA and QLoRA, "
    "with DeepSpeed's JSON or in FSDP 2's shards, and launch.sh",
    variables=variables,
    texts=texts,
    assumes={"backend": "deepspeed"},
    tasks=PLAIN,
    counts=counting.STEPS,
    ignored_fields={
        "tokenizer_model": "Axolotl takes the model's tokenizer",
        "tokenizer_type": "Axolotl takes the model's tokenizer",
        "manual_gc_interval": "Axolotl leaves garbage collection to Python",
    },
)
