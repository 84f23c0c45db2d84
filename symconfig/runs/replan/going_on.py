"""How a person starts the run of a plan on a checkpoint, in the words of the plan's target.

What a checkpoint and a schedule ask for are options of the framework's own programs (Megatron-LM's pretrain_gpt.py,
train.py); a target takes those, has words of its own for them, or none that are known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron, ms_swift, own_target

Options = Mapping[str, str]  # a switch has the value ""

# Megatron-Bridge 0.3.1, training/config.py: Hydra's overrides, which come last.
_BRIDGE = {
    "--load": "checkpoint.load={}",
    "--override-opt_param-scheduler": "scheduler.override_opt_param_scheduler=true",
    "--no-load-optim": "checkpoint.load_optim=false",
    "--no-load-rng": "checkpoint.load_rng=false",
    "--ddp-bucket-size": "ddp.bucket_size={}",
}
# ms-swift 4.6.0, megatron/arguments/megatron_args.py; its scheduler takes the checkpoint's schedule unasked.
_MS_SWIFT = {
    "--override-opt_param-scheduler": "",
    "--load": "--mcore_model {} --finetune false",
    "--no-load-optim": "--no_load_optim true",
    "--no-load-rng": "--no_load_rng true",
}


def going_on(plan: Plan, words: Sequence[str]) -> str | None:
    """What to do, as one line. words: options of the framework's own program.

    None: the target has no words for them, or how it goes on is not known here.
    """
    name = own_target(plan)
    if name in ("megatron", "deepspeed", "model-args"):
        return f"bash launch.sh {' '.join(words)}"
    own = _OWN.get(name)
    return own(plan, _options(words)) if own is not None else None


def _options(words: Sequence[str]) -> dict[str, str]:
    """By name, without what follows a name that has no value."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        else:
            found[name] = word
    return found


def _arguments(known: Mapping[str, str]) -> Callable[[Plan, Options], str | None]:
    """Behind launch.sh, by a table of what each option is there."""

    def said(plan: Plan, options: Options) -> str | None:
        if not options.keys() <= known.keys():
            return None
        return " ".join(("bash launch.sh", *filter(None, (known[name].format(options[name]) for name in options))))

    return said


def _ms_swift(plan: Plan, options: Options) -> str | None:
    """A checkpoint of adapters is loaded as such."""
    said = _arguments(_MS_SWIFT)(plan, options)
    return said and said.replace("--mcore_model", f"--{ms_swift.loaded_as(plan)}")


def _keys(plan: Plan, options: Options) -> str:
    """--yaml-cfg goes without other options."""
    table = flags.flags(megatron.version(plan)).flags
    said = (f"{table[name].dest}: {value or 'true'}" for name, value in options.items())
    return f"bash launch.sh, with {', '.join(said)} in megatron.yaml"


_OWN: Mapping[str, Callable[[Plan, Options], str | None]] = {
    "bridge": _arguments(_BRIDGE),
    "ms-swift": _ms_swift,
    "megatron-yaml": _keys,
}
