"""The optimizer of a DeepSpeed launch: of its JSON, or of a program around Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.optimizer import Optimizer
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.run import Assumed
from symconfig.frameworks.deepspeed.zero import section

# Transformers' names (training_args.py, OptimizerNames) of what keeps other states than AdamW in fp32. The paged ones
# keep as much, on the GPU as long as there is room.
_TRAINER: Mapping[str, str] = {
    "adamw_bnb_8bit": "adam8bit",
    "adamw_8bit": "adam8bit",
    "paged_adamw_8bit": "adam8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
_ADAM = ("", "adam", "adamw", "onebitadam", "zerooneadam")  # DeepSpeed's, and none


def stepped(config: Any, arguments: Arguments) -> tuple[Optimizer, tuple[Assumed, ...]]:
    """Return the optimizer, and what is taken for it where that is another one. DeepSpeed's own goes before Trainer's
    (transformers/integrations/deepspeed.py, deepspeed_optim_sched)."""
    kind = str(section(config, "optimizer").get("type", "")).lower()
    if kind == "sgd":
        return Optimizer(name="sgd"), ()
    if kind not in _ADAM:
        why = f"of {kind} nothing is predicted, and few keep more than AdamW does"
        return Optimizer(), (Assumed("optimizer", "adam", why),)
    if kind:
        return Optimizer(), ()
    word = arguments.text("optim") or ""
    name: Any = _TRAINER.get(word, "adam")
    if name == "adam" and word and not word.startswith("adamw_"):
        return Optimizer(), (Assumed("optimizer", "adam", f"of {word} nothing is predicted", arguments.place("optim")),)
    return Optimizer(name=name), ()
