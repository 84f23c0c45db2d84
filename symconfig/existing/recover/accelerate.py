"""Accelerate's file, and the options of its launcher: how the processes that it starts keep what they train.

Source: Accelerate 1.14, commands/config/config_args.py, commands/launch.py, utils/dataclasses.py (DeepSpeedPlugin,
FullyShardedDataParallelPlugin).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.world import launcher_options
from symconfig.frameworks.deepspeed.keys import AUTO

_DEEPSPEED, _FSDP = "DEEPSPEED", "FSDP"
_NONE = ("", "none", "None", None)


@dataclass(frozen=True, slots=True)
class Launched:
    """What Accelerate's configuration file and launcher options set for the training processes.

    Args:
        shards: whether FSDP shards weights, gradients and optimizer states.
        config: the DeepSpeed JSON that Accelerate builds from its own keys; None without DeepSpeed or with a JSON file.
        precision: the value of mixed_precision, such as "bf16"; None if it is absent or "no".
        sharded: options of FSDP by their names without the prefix `fsdp_`.
        parallel: degrees of the device mesh by their names without the prefix `parallelism_config_`.
    """

    shards: bool = False
    config: Mapping[str, Any] | None = None
    precision: str | None = None
    sharded: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, Any] = field(default_factory=dict)


def launched(reading: Reading) -> Launched:
    """Return what Accelerate's file and launcher options set; all defaults (plain replicas) if Accelerate is not used.

    Options of the launcher take precedence over the file. `sharded` and `parallel` may hold keys that are not of FSDP
    or the mesh.
    """
    tree = reading.accelerate
    data: dict[str, Any] = dict(tree.data) if tree is not None else {}
    options = {each.key: each.value.text for each in launcher_options(reading.launcher)}
    words = {word.text.lstrip("-") for word in reading.launcher}
    kind = str(data.get("distributed_type", "")).upper()
    if "use_deepspeed" in words or "zero_stage" in options:
        kind = _DEEPSPEED
    elif "use_fsdp" in words:
        kind = _FSDP
    given = {**_section(data, "deepspeed_config"), **options}
    trainer = reading.fsdp.data if reading.fsdp is not None else {}
    precision = options.get("mixed_precision", data.get("mixed_precision"))
    return Launched(
        kind == _FSDP,
        _config(given, precision) if kind == _DEEPSPEED and "deepspeed_config_file" not in given else None,
        None if precision in ("no", *_NONE) else str(precision),
        _plain("fsdp_", {**trainer, **_section(data, "fsdp_config"), **options}),
        _plain("parallelism_config_", _section(data, "parallelism_config")),
    )


def _config(given: Mapping[str, Any], precision: Any) -> dict[str, Any]:
    """Return the JSON that Accelerate builds for DeepSpeed: ZeRO stage (2 by default), offload and precision.

    Both precisions are "auto" if `precision` is neither "bf16" nor "fp16". Raises ValueError if zero_stage is no
    integer.
    """
    zero: dict[str, Any] = {"stage": int(given.get("zero_stage", 2))}
    for part in ("optimizer", "param"):
        device = given.get(f"offload_{part}_device")
        if device not in _NONE:
            zero |= {f"offload_{part}": {"device": str(device)}}
    known = ("bf16", "fp16")
    enabled = {name: {"enabled": precision == name if precision in known else AUTO} for name in known}
    return {"zero_optimization": zero, **enabled}


def _plain(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).removeprefix(prefix): value for key, value in values.items()}


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = data.get(name)
    return part if isinstance(part, dict) else {}
