"""Rules of number types, loss scaling and the optimizer of a DeepSpeed JSON, and of switches that only cost time."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.deepspeed.keys import ZERO

# torch.float16's largest value is 65504: a first loss scale far above it only overflows until it has been halved.
MAX_SCALE_POWER = 24
_TYPES = ("fp32", "fp16", "bf16")
_BF16 = '"bf16": {"enabled": true}'
_ZERO = f'{_BF16}, "data_types": {{"grad_accum_dtype": "fp32"}}, "{ZERO}": {{"stage": 2, "overlap_comm": true'

DEEPSPEED: Rules[DeepSpeedFacts] = Rules()


def _example(rest: str) -> str:
    return f'{{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, {rest}}}'


@DEEPSPEED.rule(
    "deepspeed-two-precisions",
    "error",
    "Both bf16 and fp16 are on",
    "DeepSpeed refuses it (deepspeed/runtime/config.py, _initialize_params).",
    _example(f'{_BF16}, "fp16": {{"enabled": true}}'),
)
def _both(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.precision == "bf16" and facts.get("fp16", "enabled") is True:
        yield facts.problem(("fp16", "enabled"), "is on beside bf16", hint="one of the two")


@DEEPSPEED.rule(
    "deepspeed-no-precision",
    "warning",
    "Training is in 32 bits",
    "Both sections are off by default: twice the memory of weights and gradients, and products without the "
    "16-bit tensor cores.",
    _example('"gradient_clipping": 1.0'),
)
def _neither(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.precision == "fp32" and facts.get("torch_autocast", "enabled") is not True:
        where = ("bf16",) if facts.section("bf16") else ()
        yield facts.problem(
            where,
            "neither bf16 nor fp16 is on: all weights, gradients and products are in 32 bits",
            hint='"bf16": {"enabled": true}',
        )


@DEEPSPEED.rule(
    "deepspeed-accumulation-type",
    "error",
    "Gradients cannot be accumulated in this type",
    "deepspeed/runtime/engine.py, get_data_types and _do_optimizer_sanity_check: an unknown type, or without ZeRO "
    "another type than the weights', stops the start after the model was built.",
    _example(f'{_BF16}, "data_types": {{"grad_accum_dtype": "fp32"}}'),
)
def _accumulation_type(facts: DeepSpeedFacts) -> Iterator[Problem]:
    kind, path = facts.get("data_types", "grad_accum_dtype"), ("data_types", "grad_accum_dtype")
    if kind not in (None, *_TYPES):
        yield facts.problem(path, f"{kind!r} is not a type", hint="fp32, fp16 or bf16")
    elif kind not in (None, facts.precision) and facts.stage == 0 and facts.precision != "unknown":
        yield facts.problem(path, f"{kind} with {facts.precision} weights needs ZeRO", hint="stage 1, 2 or 3")


@DEEPSPEED.rule(
    "deepspeed-coarse-accumulation",
    "note",
    "Many gradients are added up in bf16",
    "Without grad_accum_dtype the sum has the weights' type (deepspeed/runtime/engine.py, get_data_types), and "
    "small contributions are rounded away.",
    _example(f'{_BF16}, "{ZERO}": {{"stage": 2, "overlap_comm": true}}'),
)
def _coarse_sum(facts: DeepSpeedFacts) -> Iterator[Problem]:
    steps = facts.whole("gradient_accumulation_steps", otherwise=1)
    kind = facts.get("data_types", "grad_accum_dtype")
    if facts.precision == "bf16" and facts.stage and kind in (None, "bf16") and steps > 1:
        yield facts.problem(
            ("data_types", "grad_accum_dtype") if kind else ("gradient_accumulation_steps",),
            f"gradients of {steps} microbatches are added up in bf16, which keeps 8 bits of each",
            hint='"data_types": {"grad_accum_dtype": "fp32"}, for 2 bytes more a parameter',
        )


@DEEPSPEED.rule(
    "deepspeed-states-without-zero",
    "error",
    "16-bit master weights or states are asked for without ZeRO",
    "DeepSpeed refuses it (deepspeed/runtime/config.py, _do_error_check).",
    _example('"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}'),
)
def _bf16_states(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for section, key in (
        ("fp16", "fp16_master_weights_and_grads"),
        ("bf16", "bf16_master_weights_and_grads"),
        ("bf16", "bf16_optimizer_states"),
    ):
        if facts.get(section, key) is not True:
            continue
        if facts.stage == 0:
            yield facts.problem((section, key), "is for ZeRO's optimizers only", hint="stage 1, 2 or 3")
        elif key == "bf16_optimizer_states" and facts.get("bf16", "bf16_master_weights_and_grads") is not True:
            yield facts.problem((section, key), "needs bf16_master_weights_and_grads", hint="both, or neither")


@DEEPSPEED.rule(
    "deepspeed-loss-scale-range",
    "error",
    "A number of the loss scaling is out of range",
    "DeepSpeed refuses it (deepspeed/runtime/precision_config.py).",
    _example('"fp16": {"enabled": true, "loss_scale_window": 0}'),
)
def _loss_scale(facts: DeepSpeedFacts) -> Iterator[Problem]:
    scale = facts.number("fp16", "loss_scale")
    if scale is not None and scale < 0:
        yield facts.problem(("fp16", "loss_scale"), "is below zero", got=str(scale), need="0: chosen as it goes")
    dynamic = facts.precision == "fp16" and not scale
    for key in ("loss_scale_window", "min_loss_scale"):
        value = facts.number("fp16", key)
        if dynamic and value is not None and value <= 0:
            yield facts.problem(("fp16", key), "must be above zero where the loss scale is dynamic", got=str(value))


@DEEPSPEED.rule(
    "deepspeed-fixed-loss-scale",
    "warning",
    "The loss scale is fixed",
    "A value above zero switches dynamic scaling off (deepspeed/runtime/fp16/loss_scaler.py).",
    _example('"fp16": {"enabled": true, "loss_scale": 128}'),
)
def _fixed_scale(facts: DeepSpeedFacts) -> Iterator[Problem]:
    scale = facts.number("fp16", "loss_scale")
    if facts.precision == "fp16" and scale is not None and scale > 0:
        yield facts.problem(
            ("fp16", "loss_scale"),
            "is fixed: one overflow is enough to lose a step, and nothing lowers it",
            got=str(scale),
            hint="0, which is dynamic",
        )


@DEEPSPEED.rule(
    "deepspeed-large-loss-scale",
    "warning",
    "The first loss scale overflows",
    "fp16 ends at 65504; a step that overflows is left out and halves the scale "
    "(deepspeed/runtime/fp16/loss_scaler.py), one power of two a step.",
    _example('"fp16": {"enabled": true, "initial_scale_power": 32}'),
)
def _large_scale(facts: DeepSpeedFacts) -> Iterator[Problem]:
    power = facts.number("fp16", "initial_scale_power")
    if facts.precision == "fp16" and power is not None and power > MAX_SCALE_POWER:
        yield facts.problem(
            ("fp16", "initial_scale_power"),
            f"starts at a loss scale of 2^{power:.0f}, which overflows, and loses a step for each halving",
            hint="16",
        )


@DEEPSPEED.rule(
    "deepspeed-betas",
    "error",
    "Adam's betas are not two numbers below one",
    "The optimizer looks at them when it is made, and fails.",
    _example(f'{_BF16}, "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4, "betas": [0.9]}}}}'),
)
def _betas(facts: DeepSpeedFacts) -> Iterator[Problem]:
    betas = facts.get("optimizer", "params", "betas")
    if betas not in (None, "auto") and not (
        isinstance(betas, list) and len(betas) == 2 and all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas)
    ):
        yield facts.problem(("optimizer", "params", "betas"), f"{betas!r} are not two numbers in [0, 1)")


@DEEPSPEED.rule(
    "deepspeed-learning-rate",
    "warning",
    "The learning rate is not one",
    "Adam's steps are about as large as the learning rate; at one or more nothing is learnt.",
    _example(f'{_BF16}, "optimizer": {{"type": "AdamW", "params": {{"lr": 3.0}}}}'),
)
def _learning_rate(facts: DeepSpeedFacts) -> Iterator[Problem]:
    lr = facts.number("optimizer", "params", "lr")
    if lr is not None and not 0 < lr < 1:
        yield facts.problem(("optimizer", "params", "lr"), f"{lr} is not a learning rate", hint="1e-6 to 1e-2")


@DEEPSPEED.rule(
    "deepspeed-text-number",
    "error",
    "A number of the optimizer is text",
    'The parameters go to the optimizer as they are; "1e-5" in quotes is compared with 0 there, and fails. YAML '
    "readers of version 1.1 make text of 1e-5, too.",
    _example(f'{_BF16}, "optimizer": {{"type": "AdamW", "params": {{"lr": "1e-5"}}}}'),
)
def _text_number(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for key in ("lr", "eps", "weight_decay"):
        value = facts.get("optimizer", "params", key)
        if isinstance(value, str) and value != "auto":
            yield facts.problem(
                ("optimizer", "params", key),
                "is text, which no optimizer computes with",
                got=repr(value),
                need="a number",
                hint=value,
            )


@DEEPSPEED.rule(
    "deepspeed-max-grad-norm",
    "error",
    "The optimizer is given max_grad_norm",
    "The engine stops when it makes the optimizer (deepspeed/runtime/engine.py, _configure_basic_optimizer).",
    _example(
        f'{_BF16}, "gradient_clipping": 1.0, "optimizer": {{"type": "Lamb", "params": {{"lr": 1e-4, '
        '"max_grad_norm": 1.0}}'
    ),
)
def _max_grad_norm(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if "max_grad_norm" in facts.section("optimizer", "params"):
        yield facts.problem(
            ("optimizer", "params", "max_grad_norm"),
            "is no parameter of an optimizer",
            of_key=True,
            hint="gradient_clipping beside it",
        )


@DEEPSPEED.rule(
    "deepspeed-torch-adam-offload",
    "warning",
    "An offloaded optimizer runs torch's Adam",
    "DeepSpeedCPUAdam is vectorised by hand and several times as fast on the host "
    "(deepspeed/runtime/engine.py, get_optimizer_configuration).",
    _example(
        f'{_ZERO}, "offload_optimizer": {{"device": "cpu"}}}}, "optimizer": {{"type": "AdamW", "params": '
        '{"lr": 1e-4, "torch_adam": true}}'
    ),
)
def _torch_adam(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.offloads("offload_optimizer") and facts.stage and facts.get("optimizer", "params", "torch_adam"):
        yield facts.problem(
            ("optimizer", "params", "torch_adam"),
            "runs torch's slow Adam on the host",
            hint="leave it out with offload",
        )


@DEEPSPEED.rule(
    "deepspeed-communication-type",
    "error",
    "Gradients cannot be sent in this type",
    "DeepSpeed refuses it (deepspeed/runtime/config.py, get_communication_data_type).",
    _example(f'{_BF16}, "communication_data_type": "float16"'),
)
def _communication_type(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = facts.get(key)
        if isinstance(value, str) and value.lower() not in (*_TYPES, "auto"):
            yield facts.problem(
                (key,), "is not a type that DeepSpeed communicates in", got=repr(value), need=", ".join(_TYPES)
            )


@DEEPSPEED.rule(
    "deepspeed-summed-gradients",
    "error",
    "ZeRO-3 is to add gradients up and not to average them",
    "DeepSpeed refuses it (deepspeed/runtime/config.py, _do_error_check).",
    _example(
        f'{_BF16}, "gradient_allreduce_op": "sum", "{ZERO}": {{"stage": 3}}, "data_types": '
        '{"grad_accum_dtype": "fp32"}'
    ),
)
def _summed(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.get("gradient_allreduce_op") == "sum" and facts.stage == 3:
        yield facts.problem(("gradient_allreduce_op",), "is sum, which ZeRO-3 has not", hint="leave it out, or stage 2")


@DEEPSPEED.rule(
    "deepspeed-breakdown",
    "warning",
    "Timers wait for the GPU",
    "Each timer synchronises the device when it starts and stops (deepspeed/utils/timer.py), so that the host no "
    "longer runs ahead.",
    _example(f'{_BF16}, "wall_clock_breakdown": true'),
)
def _timers(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for key in ("wall_clock_breakdown", "memory_breakdown"):
        if facts.get(key) is True:
            yield facts.problem((key,), "waits for the GPU around every part of every step to measure it", hint="false")


@DEEPSPEED.rule(
    "deepspeed-unused-checkpointing",
    "note",
    "Activation_checkpointing does nothing here",
    "It configures deepspeed.checkpointing; Transformers' models recompute with torch's, which "
    "--gradient_checkpointing switches on.",
    "deepspeed train.py --deepspeed ds.json\n"
    + _example(f'{_BF16}, "activation_checkpointing": {{"partition_activations": true}}'),
)
def _checkpointing(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.trainer and facts.section("activation_checkpointing"):
        yield facts.problem(
            ("activation_checkpointing",),
            "sets up DeepSpeed's own recompute, which Transformers' models do not call",
            of_key=True,
            hint="--gradient_checkpointing True",
        )
