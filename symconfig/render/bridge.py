"""Target bridge: Megatron-Bridge's configuration as YAML and as overrides, and a train.py; LoRA, too."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.frameworks import counting
from symconfig.frameworks.megatron import adapters, environment
from symconfig.frameworks.megatron.bridge import BRIDGE_MEGATRON, BRIDGE_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import bridge_gemma, going_on, megatron, preflight, summary
from symconfig.render.bridge_config import (
    PRETRAINED,
    RECIPES,
    overrides,
    peft,
    provider,
    sections,
    version,
)
from symconfig.render.files import File, sh
from symconfig.render.unsaid import Saving
from symconfig.render.weights import fine_tuned, hf_weights

NAME = "bridge"
DOES = "Megatron-Bridge's YAML, its overrides as a command line, train.py; adapters, too"
ASSUMES = {"backend": "megatron", "megatron_version": BRIDGE_MEGATRON[-1]}
SAVING = Saving("checkpoint.save", "bash launch.sh checkpoint.save=DIR")
COUNTS = counting.MEGATRON
# Of megatron-bridge 0.3.1, training/config.py: Hydra's overrides, which come last.
goes_on = going_on.translated(
    {
        "--load": "checkpoint.load={}",
        "--override-opt_param-scheduler": "scheduler.override_opt_param_scheduler=true",
        "--no-load-optim": "checkpoint.load_optim=false",
        "--no-load-rng": "checkpoint.load_rng=false",
        "--ddp-bucket-size": "ddp.bucket_size={}",
    }
)

# The activation of Megatron-Core's MLP, as (module, name); gates are told apart from it.
_ACTIVATIONS = {
    "silu": ("torch.nn.functional", "silu"), "gelu": ("torch.nn.functional", "gelu"),
    "gelu_tanh": ("torch.nn.functional", "gelu"), "relu": ("torch.nn.functional", "relu"),
    "gelu_sigmoid": ("megatron.core.fusions.fused_bias_geglu", "quick_gelu"),
    "relu2": ("megatron.core.activations", "squared_relu"),
    "clamped_swiglu": ("megatron.core.fusions.fused_bias_geglu", "quick_gelu"),
}  # fmt: skip


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError with all that cannot be expressed, InputError."""
    config, target, model = sections(plan), version(plan), plan.model
    module, name = provider(model)
    targets = adapters.targets(model)
    return {
        "framework": f"Megatron-Bridge {BRIDGE_RELEASE} on Megatron-LM {target}",
        "version": target,
        "release": BRIDGE_RELEASE,
        "config": config,
        "variables": environment.variables(plan, target),
        "wants": preflight.wants(plan),
        "notes": _notes(plan, target),
        "provider_module": module,
        "provider": name,
        "activation_module": _ACTIVATIONS[model.hidden_act][0],
        "activation": _ACTIVATIONS[model.hidden_act][1],
        "variant_spec": bool(model.mixers),
        "own_windows": bridge_gemma.fits(model),
        "block_spec": model.experts is not None or model.latent is not None,
        "recipe": RECIPES[plan.best.options.precision],
        "fine_tuned": fine_tuned(plan),
        "adapter_class": targets.kind if targets else None,
        "peft": peft(plan),
        "pretrained": PRETRAINED,
        "weights": hf_weights(plan),
        "predicted_for": summary.predicted_for(plan, megatron.NAME),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the overrides as a command line of its own would have them."""
    yield File("overrides.txt", " ".join(map(sh, words(plan))) + "\n")


def words(plan: Plan) -> list[str]:
    """Return the overrides, for a script that adds them to a recipe of its own. Raises as `variables`."""
    return overrides(sections(plan))


def _start(plan: Plan) -> str:
    """Say where the first weights are."""
    where = (
        f"The weights that it starts from are a Megatron checkpoint in PRETRAINED_CHECKPOINT (default: {PRETRAINED})"
    )
    if (weights := hf_weights(plan)) is None:
        return f"{where}. HF_WEIGHTS names Hugging Face weights, of which launch.sh then makes it"
    return (
        f"{where}. Where there is none, launch.sh makes it of {weights}, or of what HF_WEIGHTS names, on the first node"
    )


def _notes(plan: Plan, target: str) -> tuple[str, ...]:
    notes = [note for note in megatron.notes(plan) if "pretrain_gpt.py" not in note]
    planned = megatron.version(plan)
    if planned != target:
        notes.append(
            f"The plan was made for Megatron-LM {planned}; Megatron-Bridge {BRIDGE_RELEASE} goes with "
            f"{target}, as whose options these are written: symconfig plan --megatron-version {target} "
            "plans for it"
        )
    if plan.model.adapter is not None:
        notes.append("Adapters are Megatron-Bridge's, each of two parallel layers beside a frozen one")
    if fine_tuned(plan):
        notes.append(_start(plan))
        # FinetuningDatasetConfig without packed_sequence_specs (data/samplers.py, data/datasets/sft.py)
        notes.append(
            "Examples of a folder with training.jsonl are neither packed nor padded to seq_length, but to the "
            "longest of a data-parallel rank's share of a step: the prediction, for full sequences, is an "
            "upper bound of time and memory, and counts more tokens than a step then has"
        )
    return tuple(notes)
