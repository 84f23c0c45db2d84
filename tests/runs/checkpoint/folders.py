"""Folders as the frameworks leave them, for tests: the names, and as much in the files as is read of them."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

ARGUMENTS = {
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "context_parallel_size": 1,
    "expert_model_parallel_size": 1, "data_parallel_size": 4, "world_size": 16, "num_layers": 40, "hidden_size": 5120,
    "ffn_hidden_size": 13824, "num_attention_heads": 40, "global_batch_size": 128, "seq_length": 4096, "bf16": True,
    "use_distributed_optimizer": True, "untie_embeddings_and_output_weights": True, "lr": 3e-4, "num_experts": None,
}  # fmt: skip
# Names of tensors by which a checkpoint shows how it holds the optimizer's state.
OPTIMIZER = {
    "dp_reshardable": "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_0",
    "dp_zero_gather_scatter": "optimizer.distributed.dp_group_idx_0.param_state/shard_0_1",
    "fully_reshardable": "optimizer.state.param.decoder.layers.mlp.linear_fc1.weight",
    "fully_sharded_model_space": "optimizer.state.fp32_param.decoder.layers.mlp.linear_fc1.weight",
    "": "decoder.layers.mlp.linear_fc1.weight",
}


def archive(value: Any) -> bytes:
    """As torch.save writes it: a pickle within a zip."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
    return stream.getvalue()


SAFETENSORS = b"\x02" + bytes(7) + b"{}"  # the length of a header, and one without tensors


def common(**changes: Any) -> dict[str, Any]:
    return {"args": Namespace(**{**ARGUMENTS, **changes}), "checkpoint_version": 3.0, "iteration": 200}


def torch_dist(
    root: Path, optimizer: str = "dp_reshardable", iteration: int = 200, inside: bool = False, **changes: Any
) -> Path:
    """A root of Megatron-LM's torch_dist. inside: the common state among the tensors, as from core_v0.19 on."""
    data = root / f"iter_{iteration:07d}"
    data.mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    (data / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    packed = archive({**common(**changes), "iteration": iteration})
    index: dict[str, Any] = {OPTIMIZER[optimizer]: "__0_0.distcp", "weights": "__1_0.distcp"}
    (data / "__1_0.distcp").write_bytes(b"tensors")
    (data / "__0_0.distcp").write_bytes(b"tensors" + (packed if inside else b""))
    if inside:
        index["places"] = [
            {"fqn": "common_state/shard_0_1", "index": None},
            {"relative_path": "__0_0.distcp", "offset": 7, "length": len(packed)},
        ]
    else:
        (data / "common.pt").write_bytes(packed)
    (data / ".metadata").write_bytes(pickle.dumps(index))
    return root


def by_rank(root: Path, tp: int, pp: int, ep: int = 1, iteration: int = 200) -> Path:
    """A root of Megatron-LM's torch format."""
    (root / f"iter_{iteration:07d}").mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    packed = archive(
        common(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep)
    )
    for rank in range(tp * pp * ep):
        name = f"mp_rank_{rank % tp:02d}" + (f"_{rank // tp % pp:03d}" if pp > 1 else "")
        folder = root / f"iter_{iteration:07d}" / (name + (f"_{rank // tp // pp:03d}" if ep > 1 else ""))
        folder.mkdir()
        (folder / "model_optim_rng.pt").write_bytes(packed)
    return root


def deepspeed(root: Path, dp: int = 4, tp: int = 1, stage: int = 2, tag: str = "step-30", **changes: Any) -> Path:
    """A root of DeepSpeed's. changes: to what its model states say of the run."""
    data = root / tag
    data.mkdir(parents=True)
    (root / "latest").write_text(tag)
    state = {
        "dp_world_size": dp,
        "mp_world_size": tp,
        "global_steps": 30,
        "ds_version": "0.19.8",
        "ds_config": {"zero_optimization": {"stage": stage}, "train_batch_size": 64},
        **changes,
    }
    for rank in range(tp):
        (data / f"mp_rank_{rank:02d}_model_states.pt").write_bytes(archive(state))
        for replica in range(dp):
            name = f"bf16_zero_pp_rank_{replica}_mp_rank_{rank:02d}_optim_states.pt"
            (data / name).write_bytes(archive({"optimizer_state_dict": {"zero_stage": stage}}))
    return root
