"""Checkpoints and final weights for train.py, whole whatever the work was split over."""

from __future__ import annotations

from pathlib import Path

import deepspeed
import torch
from deepspeed.module_inject.layers import GatherReplacedLayerParams
from deepspeed.utils import groups
from safetensors.torch import save_file


def whole_weights(engine, trained_only: bool) -> dict[str, torch.Tensor]:
    """Weights under Transformers' names, on the host of rank 0. Every rank must call it.

    DeepSpeed's own save_16bit_model writes one rank's part under AutoTP (ZeRO 0 to 2) and under AutoEP.
    """
    expert_groups = {
        module.experts: groups._get_expert_parallel_group(module.ep_group_name)
        for module in engine.module.modules()
        if type(module).__name__ == "AutoEPMoELayer"
    }
    found = {}
    for prefix, module in engine.module.named_modules():
        own = [(name, p) for name, p in module.named_parameters(recurse=False) if p.requires_grad or not trained_only]
        tensors = [p for _, p in own]
        with (
            deepspeed.zero.GatheredParameters(tensors),
            GatherReplacedLayerParams(tensors, module, enabled=engine.autotp_size() > 1),
        ):
            values = {name: p.detach() for name, p in own}
            if module in expert_groups:
                for name, tensor in values.items():
                    parts = [torch.empty_like(tensor) for _ in range(expert_groups[module].size())]
                    torch.distributed.all_gather(parts, tensor.contiguous(), group=expert_groups[module])
                    values[name] = torch.cat(parts)
                values = {"gate_up_proj": torch.cat([values["w1"], values["w3"]], dim=1), "down_proj": values["w2"]}
            if not trained_only:
                values |= {
                    name: buffer
                    for name, buffer in module.named_buffers(recurse=False)
                    if name not in module._non_persistent_buffers_set
                }
            if engine.global_rank == 0:
                found |= {
                    f"{prefix}.{name}".replace(".router.gate.", ".gate.").replace(
                        ".router.", ".gate."
                    ): value.cpu().clone()
                    for name, value in values.items()
                }
    return found


def universal_is_latest(folder: Path) -> bool:
    """Whether the universal checkpoint, TAG_universal, is of the TAG that `latest` names, and not of an earlier step: a
    run that goes on saves its own beside it, and its restarts resume from those."""
    latest, universal = folder / "latest", folder / "latest_universal"
    if not latest.is_file() or not universal.is_file():
        return True
    return universal.read_text().strip() == f"{latest.read_text().strip()}_universal"


def save(engine, out: str, step: int, sequences: int, adapter: bool, final: bool) -> None:
    """A checkpoint to resume from; at the end also the weights, or the adapter, for from_pretrained.

    sequences: how many the run has seen, which says where it is also to a run with another batch.
    """
    engine.save_checkpoint(
        out, tag=f"step-{step}", client_state={"step": step, "sequences": sequences}, exclude_frozen_parameters=adapter
    )
    weights = whole_weights(engine, trained_only=adapter) if final else {}
    if final and engine.global_rank == 0:
        folder = Path(out) / "final"
        if adapter:
            engine.module.save_pretrained(str(folder), state_dict=weights)
        else:
            engine.module.config.save_pretrained(str(folder))
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
