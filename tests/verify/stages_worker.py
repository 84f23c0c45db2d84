"""Asks Megatron's own functions what each (virtual) stage holds. A script for `python -E -P`: SOURCE RUNNERS_FOLDER.

Standard input: a JSON list of cases, each the arguments of a TransformerConfig. Answer, one JSON line: per case
[[[first layer, number of layers] of each virtual stage] of each stage], or the refusal as text.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Megatron prints is no answer
    spec = spec_from_file_location("megatron_shims", Path(sys.argv[2]) / "megatron_shims.py")
    shims = sys.modules["megatron_shims"] = module_from_spec(spec)
    spec.loader.exec_module(shims)
    shims.install(Path(sys.argv[1]))
    print(json.dumps([_stages(case) for case in json.load(sys.stdin)]), file=answers)


def _stages(case: dict[str, Any]) -> Any:
    core = "megatron.core.transformer."
    state: Any = importlib.import_module("megatron.core.parallel_state")
    pp, vpp = case["pipeline_model_parallel_size"], case["virtual_pipeline_model_parallel_size"]
    state.set_pipeline_model_parallel_world_size(pp)
    state.set_virtual_pipeline_model_parallel_world_size(vpp)
    build = importlib.import_module(f"{core}transformer_block").get_num_layers_to_build
    offset = importlib.import_module(f"{core}transformer_layer").get_transformer_layer_offset
    try:
        config = importlib.import_module(f"{core}transformer_config").TransformerConfig(
            hidden_size=64, num_attention_heads=4, pipeline_dtype=importlib.import_module("torch").bfloat16, **case
        )
        return [
            [
                [_call(function, config, pp_rank, vp_stage, vpp) for function in (offset, build)]
                for vp_stage in range(vpp or 1)
            ]
            for pp_rank in range(pp)
        ]
    except (AssertionError, ValueError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"


def _call(function: Any, config: Any, pp_rank: int, vp_stage: int, vpp: int | None) -> int:
    state: Any = importlib.import_module("megatron.core.parallel_state")
    state.set_pipeline_model_parallel_rank(pp_rank)
    state.set_virtual_pipeline_model_parallel_rank(vp_stage if vpp else None)
    taken = inspect.signature(function).parameters
    offered = {"vp_stage": vp_stage if vpp else None, "pp_rank": pp_rank}
    return int(function(config, **{name: value for name, value in offered.items() if name in taken}))


if __name__ == "__main__":
    main()
