"""The "auto" values of a DeepSpeed JSON, as Transformers' Trainer fills them in from its own arguments.

Source: transformers/integrations/deepspeed.py, HfTrainerDeepSpeedConfig, 5.23; the arguments' defaults are those of
transformers/training_args.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.recover.arguments import Arguments
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, AUTO, MICRO, TRAIN, ZERO

Json = dict[str, Any]
# Names that programs around the Trainer have for its own: Transformers', Axolotl's, older Transformers'.
MICRO_ARGUMENTS = ("per_device_train_batch_size", "micro_batch_size", "per_gpu_train_batch_size")
_LR, _ADAM = 5e-5, (0.9, 0.999)

_FROM_ARGUMENTS: Mapping[KeyPath, Callable[[Arguments], Any]] = {
    (MICRO,): lambda a: a.whole(*MICRO_ARGUMENTS) or 8,
    (ACCUMULATION,): lambda a: a.whole(ACCUMULATION) or 1,
    ("gradient_clipping",): lambda a: _or(a.number("max_grad_norm"), 1.0),
    ("optimizer", "params", "lr"): lambda a: _or(a.number("learning_rate"), _LR),
    ("optimizer", "params", "betas"): lambda a: [
        _or(a.number("adam_beta1"), _ADAM[0]),
        _or(a.number("adam_beta2"), _ADAM[1]),
    ],
    ("optimizer", "params", "eps"): lambda a: _or(a.number("adam_epsilon"), 1e-8),
    ("optimizer", "params", "weight_decay"): lambda a: _or(a.number("weight_decay"), 0.0),
    ("scheduler", "params", "warmup_min_lr"): lambda a: 0,
    ("scheduler", "params", "warmup_max_lr"): lambda a: _or(a.number("learning_rate"), _LR),
    ("fp16", "enabled"): lambda a: bool(a.switch("fp16")),
    ("bf16", "enabled"): lambda a: bool(a.switch("bf16")),
}
# What says the value: where none of these is given, the Trainer's default is taken.
SAID_BY: Mapping[KeyPath, tuple[str, ...]] = {
    (MICRO,): MICRO_ARGUMENTS,
    (ACCUMULATION,): (ACCUMULATION,),
    ("gradient_clipping",): ("max_grad_norm",),
    ("optimizer", "params", "lr"): ("learning_rate",),
    ("optimizer", "params", "betas"): ("adam_beta1", "adam_beta2"),
    ("optimizer", "params", "eps"): ("adam_epsilon",),
    ("optimizer", "params", "weight_decay"): ("weight_decay",),
    ("fp16", "enabled"): ("fp16",),
    ("bf16", "enabled"): ("bf16",),
}
_OF_HIDDEN_SIZE: Mapping[KeyPath, Callable[[int], int]] = {
    (ZERO, "reduce_bucket_size"): lambda hidden: hidden * hidden,
    (ZERO, "stage3_prefetch_bucket_size"): lambda hidden: int(0.9 * hidden * hidden),
    (ZERO, "stage3_param_persistence_threshold"): lambda hidden: 10 * hidden,
}
# Set by Accelerate, under the Trainer, whatever the file says (accelerate/utils/dataclasses.py, DeepSpeedPlugin).
OVERWRITTEN: frozenset[KeyPath] = frozenset({("steps_per_print",)})
_OF_STEPS = frozenset({("scheduler", "params", "total_num_steps"), ("scheduler", "params", "warmup_num_steps")})


def autos(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield every path whose value is "auto"."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from autos(item, (*path, key))
    elif value == AUTO:
        yield path


def fills(path: KeyPath, stage: int) -> bool:
    """Tell whether the Trainer fills a key in; those of ZeRO-3's own keys it does at stage 3 only."""
    if path in _OF_HIDDEN_SIZE:
        return stage == 3 or path == (ZERO, "reduce_bucket_size")
    return path in _FROM_ARGUMENTS or path in _OF_STEPS or path == (TRAIN,)


def uses_trainer(arguments: Arguments) -> bool:
    """Tell whether the Trainer reads the JSON: its option is --deepspeed FILE, DeepSpeed's own
    --deepspeed_config FILE.
    """
    return not arguments.given("deepspeed_config")


def filled(config: Any, arguments: Arguments, hidden_size: int | None) -> Any:
    """Copy the JSON with "auto" replaced wherever the arguments, or the defaults of the Trainer's, say the value.

    train_batch_size is left out: DeepSpeed multiplies it out to what the Trainer would write there. What else is not
    known (all that arguments say, where there are none; sizes without a model; numbers of steps) stays "auto".
    """
    if not isinstance(config, dict):
        return config
    copy: Json = _copied(config)
    if copy.get(TRAIN) == AUTO:
        del copy[TRAIN]
    zero = copy.get(ZERO)
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    for path in list(autos(copy)):
        if not fills(path, stage):
            continue
        section = copy
        for key in path[:-1]:
            section = section[str(key)]
        if path in _FROM_ARGUMENTS and arguments.settings:
            section[str(path[-1])] = _FROM_ARGUMENTS[path](arguments)
        elif path in _OF_HIDDEN_SIZE and hidden_size is not None:
            section[str(path[-1])] = _OF_HIDDEN_SIZE[path](hidden_size)
    return copy


def mismatches(config: Any, arguments: Arguments) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yield (path, value of the JSON, value of the arguments) where both say one and differ: the Trainer then stops."""
    for path, names in SAID_BY.items():
        section: Any = config
        for key in path:
            section = section.get(key) if isinstance(section, dict) else None
        if section in (None, AUTO) or not arguments.given(*names):
            continue
        wanted = _FROM_ARGUMENTS[path](arguments)
        if section != wanted:
            yield path, section, wanted


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value
