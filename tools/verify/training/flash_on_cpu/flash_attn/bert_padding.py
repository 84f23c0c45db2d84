"""Padding taken out of a batch, and put back: what flash-attn's module of this name does, in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return tensor[indices]


def unpad_input(
    states: torch.Tensor, mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Return the tokens that a mask[B, T] has of states[B, T, ...], their places, the bounds of sequences and the
    longest of these."""
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    places = mask.flatten().nonzero().flatten()
    bounds = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return states.flatten(0, 1)[places], places, bounds, int(lengths.max()), lengths


def pad_input(states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    whole = states.new_zeros(batch * seqlen, *states.shape[1:])
    whole[indices] = states
    return whole.unflatten(0, (batch, seqlen))


def rearrange(states: torch.Tensor, pattern: str, **sizes: int) -> torch.Tensor:
    from einops import rearrange as by_einops

    return by_einops(states, pattern, **sizes)
