"""A process of its own: {"requests": [...]} on standard input, what the real DeepSpeed makes of them on the last line.

Each: {"config": {...}, "world_size": n, "trainer": {...} or null, "hidden_size": n}. With `trainer` (values of
TrainingArguments), Transformers fills the "auto" values in first. The line: {"ok": true, "answers": [...]}, for each
request {"ok", "error", "resolved", "config"}.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from types import SimpleNamespace
from typing import Any

Json = dict[str, Any]


def main() -> None:
    os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    requests = json.load(sys.stdin)["requests"]
    logging.disable(logging.WARNING)
    answers = [_answer(request) for request in requests]
    print("\n" + json.dumps({"ok": True, "answers": answers}, default=str), flush=True)


def _answer(request: Json) -> Json:
    try:
        config = _filled(request) if request.get("trainer") else request["config"]
        return {"ok": True, "error": None, "resolved": _resolve(config, request["world_size"]), "config": config}
    except Exception as error:  # whatever DeepSpeed says is the finding
        return {"ok": False, "error": f"{type(error).__name__}: {error}", "resolved": {}, "config": {}}


def _resolve(config: Json, world_size: int) -> Json:
    """Return {name: value} of what DeepSpeedConfig resolves at a claimed world size: batch sizes, accumulation,
    clipping, lr, ZeRO stage, precision, offload, and the degrees of AutoTP, Ulysses and AutoEP; validates AutoEP, too.

    Precision is fp32 without bf16 or fp16; degrees are at least 1; optimizer_offload is the offloaded share (0.0
    without). Raises what DeepSpeed raises. Patches deepspeed.comm's rank (0) and world size.
    """
    import deepspeed.comm as dist
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config
    from deepspeed.runtime.config import DeepSpeedConfig

    dist.get_rank = lambda *args, **kwargs: 0
    dist.get_world_size = lambda *args, **kwargs: world_size
    parsed = DeepSpeedConfig(json.loads(json.dumps(config)))
    tp = max(parsed.tensor_parallel_config.autotp_size, 1)
    zero = parsed.zero_config
    validate_autoep_config(
        parsed.expert_parallel_config,
        world_size,
        1,
        tp,
        config.get("sequence_parallel_size", 1),
        zero_stage=int(zero.stage),
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )
    offload = zero.offload_optimizer
    return {
        "train_batch_size": parsed.train_batch_size,
        "train_micro_batch_size_per_gpu": parsed.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": parsed.gradient_accumulation_steps,
        "gradient_clipping": parsed.gradient_clipping,
        "lr": (parsed.optimizer_params or {}).get("lr"),
        "zero_stage": int(zero.stage),
        "precision": "bf16" if parsed.bfloat16_config.enabled else "fp16" if parsed.float16_config.enabled else "fp32",
        "optimizer_offload": 0.0 if offload is None or offload.device == "none" else offload.ratio,
        "param_offload": zero.offload_param is not None and zero.offload_param.device != "none",
        "autotp_size": tp,
        "sequence_parallel_size": config.get("sequence_parallel_size", 1),
        "autoep_size": max(parsed.expert_parallel_config.autoep_size, 1),
    }


def _filled(request: Json) -> Json:
    """Return the request's configuration with "auto" values filled in by Transformers from its `trainer` and
    `hidden_size`, for a run without warm-up. Raises ValueError naming the keys that are still "auto".
    """
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    given = {
        "save_on_each_node": False,
        "fp16": False,
        "bf16": False,
        "fp16_full_eval": False,
        "bf16_full_eval": False,
        **request["trainer"],
    }
    arguments = SimpleNamespace(**given, get_warmup_steps=lambda steps: 0)
    holder = HfTrainerDeepSpeedConfig(request["config"])
    holder.trainer_config_process(arguments)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=request["hidden_size"]))
    holder.trainer_config_finalize(arguments, model, 1000)
    left = sorted(_autos(holder.config))
    if left:
        raise ValueError(f'Trainer leaves "auto" in {", ".join(left)}')
    config: Json = holder.config
    return config


def _autos(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [name for key, item in value.items() for name in _autos(item, f"{path}.{key}".strip("."))]
    return [path] if value == "auto" else []


if __name__ == "__main__":
    main()
