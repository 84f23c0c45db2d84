"""A DeepSpeed JSON and PEFT's files in the words of a plan, for the formats that lead to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accepting import Values, called, lora


def of_config(config: dict[str, Any]) -> Values:
    """What the JSON says, with nothing left "auto"."""
    if left := sorted(key for key, value in _leaves(config) if value == "auto"):
        raise ValueError(f'"auto" is left in {", ".join(left)}')
    zero, tp = config["zero_optimization"], config.get("tensor_parallel", {}).get("autotp_size", 1)
    offload = zero.get("offload_optimizer") or {"device": "none"}
    return {
        "micro": config["train_micro_batch_size_per_gpu"],
        "num_microbatches": config["gradient_accumulation_steps"],
        "global": config["train_batch_size"] / tp,  # DeepSpeed counts AutoTP ranks as data ranks
        "tp": tp,
        "zero_stage": zero["stage"],
        "clip_grad": config["gradient_clipping"],
        "precision": next((name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled")), "fp32"),
        "optimizer_offload": offload.get("ratio", 1.0) if offload["device"] == "cpu" else 0.0,
        "param_offload": (zero.get("offload_param") or {}).get("device", "none") == "cpu",
        **({"overlap_grad_reduce": zero["overlap_comm"]} if zero["stage"] else {}),
    }


# Trainer's schedules in the words of the job.
_STYLES = {
    "constant_with_warmup": "constant", "cosine_with_min_lr": "cosine", "polynomial": "linear",
    "inverse_sqrt": "inverse-square-root", "warmup_stable_decay": "WSD",
}  # fmt: skip


def of_trainer(arguments: Any) -> Values:
    """What TrainingArguments hold."""
    kwargs = arguments.lr_scheduler_kwargs or {}
    rate = kwargs.get("min_lr_rate")
    floor = kwargs.get("lr_end") if rate is None else arguments.learning_rate * rate
    names = {"lr": "learning_rate", "adam_eps": "adam_epsilon", "train_iters": "max_steps"}
    return {
        **called("lr adam_beta1 adam_beta2 adam_eps weight_decay train_iters seed", arguments, names),
        "lr_warmup_iters": int(arguments.warmup_steps),
        "log_interval": int(arguments.logging_steps),
        "save_interval": int(arguments.save_steps),
        "lr_decay_style": _STYLES[str(getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type))],
        **({"min_lr": floor} if floor is not None else {}),
        "recompute": "full" if arguments.gradient_checkpointing else "none",
    }


def of_adapter(folder: Path) -> Values:
    """What PEFT and bitsandbytes' configuration in Transformers read of the adapter's files, if there are any."""
    if not (folder / "adapter_config.json").exists():
        return {"adapter": None}
    import json

    from peft import LoraConfig
    from transformers import BitsAndBytesConfig

    read = LoraConfig.from_pretrained(str(folder))
    quantised = (folder / "quantization_config.json").exists()
    if quantised:
        bits = BitsAndBytesConfig.from_dict(json.loads((folder / "quantization_config.json").read_text()))
        assert bits.load_in_4bit
        assert bits.bnb_4bit_quant_type == "nf4"
    return lora(read.r, read.lora_alpha, read.lora_dropout, read.target_modules, quantised=quantised)


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}".strip("."))]
    return [(path, value)]
