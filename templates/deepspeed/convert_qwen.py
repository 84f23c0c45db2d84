#!/usr/bin/env python3
"""Writes the weights of Qwen-7B (model_type qwen) under the names of Transformers' Qwen2 class, tensor by tensor.

Usage: convert_qwen.py NAME_OR_FOLDER OUT. The two are the same architecture: c_attn is q, k and v in one matrix, w1 the
up projection, w2 the gate. No code of the checkpoint is run. OUT gets the model/config.json that lies beside this file.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

RENAMED = (
    (r"^transformer\.wte\.", "model.embed_tokens."),
    (r"^transformer\.ln_f\.", "model.norm."),
    (r"^transformer\.h\.", "model.layers."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
    (r"\.mlp\.w1\.", ".mlp.up_proj."),
    (r"\.mlp\.w2\.", ".mlp.gate_proj."),
    (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
)


def convert(name, tensor):
    """[(new name, tensor)] of one tensor; three of c_attn."""
    for pattern, new in RENAMED:
        name = re.sub(pattern, new, name)
    if name.endswith("rotary_emb.inv_freq"):  # computed anew by the model
        return []
    if ".attn.c_attn." not in name:
        return [(name, tensor)]
    parts = tensor.chunk(3, dim=0)
    return [
        (name.replace(".attn.c_attn.", f".self_attn.{key}_proj."), part.contiguous())
        for key, part in zip("qkv", parts, strict=True)
    ]


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    if not source.is_dir():
        from huggingface_hub import snapshot_download

        source = Path(snapshot_download(sys.argv[1], allow_patterns=["*.safetensors", "*.json"]))
    shards = sorted(source.glob("*.safetensors"))
    if not shards:
        raise SystemExit(f"{source}: no *.safetensors")
    out.mkdir(parents=True, exist_ok=False)
    index: dict[str, str] = {}
    total = 0
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            tensors = dict(pair for name in file.keys() for pair in convert(name, file.get_tensor(name)))  # noqa: SIM118
        save_file(tensors, out / shard.name, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, shard.name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
    (out / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")
    shutil.copy(Path(__file__).resolve().parent / "model" / "config.json", out / "config.json")


if __name__ == "__main__":
    main()
