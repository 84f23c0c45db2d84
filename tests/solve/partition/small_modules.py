"""Modules of the operators that need all ranks where what they sum over is cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Rows(nn.Module):
    """Looks up (one row pads), normalises in three ways, takes softmaxes, and loses, with labels smoothed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.root = nn.Embedding(512, 16, padding_idx=3), nn.LayerNorm(16), nn.RMSNorm(16)
        self.batch, self.wide, self.head = nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 512)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.layer(self.table(ids))
        x = self.root(x + self.wide(x).softmax(-1))
        x = self.batch(x.transpose(1, 2)).transpose(1, 2)
        x = x * torch.log_softmax(self.wide(x), -1)
        scores = self.head(x).flatten(0, 1)
        return nn.functional.cross_entropy(scores, labels.flatten(), label_smoothing=0.1)


def rows() -> tuple[nn.Module, Any]:
    return Rows(), {"ids": torch.zeros(4, 8, dtype=torch.long), "labels": torch.zeros(4, 8, dtype=torch.long)}


class Odd(nn.Module):
    """Sizes that do not divide into two or four."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 7)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.down(self.up(x).relu()), y)


def odd() -> tuple[nn.Module, Any]:
    return Odd(), (torch.zeros(12, 6), torch.zeros(12, 7))


class Masked(nn.Module):
    """Drops at random: what every rank computes whole has to be the same on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(self.one(x), 0.5)
        return nn.functional.dropout(self.two(x), 0.5).square().mean()


def masked() -> tuple[nn.Module, Any]:
    return Masked(), (torch.zeros(8, 16),)


class Gated(nn.Module):
    """Two products of one input, which a rewrite joins."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(64, 256, bias=False), nn.Linear(64, 256, bias=False)
        self.down = nn.Linear(256, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x)).square().mean()


def gated() -> tuple[nn.Module, Any]:
    return Gated(), (torch.zeros(64, 64),)
