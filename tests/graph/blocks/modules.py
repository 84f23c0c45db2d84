"""Transformers' modules that mix tokens, each with what a descriptor says of the same block."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from tests.solve.naive import tiny

HIDDEN = 256
HEADS, HEAD_DIM = 4, 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """family, config, module: Transformers' names. same: its tensors are the block's, one for one."""

    block: str
    family: str
    config: str
    module: str
    given: dict[str, Any]
    sizes: dict[str, int]
    switches: tuple[str, ...] = ()
    same: bool = True
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def descriptor(self) -> ModelDescriptor:
        mixer = {"block": self.block, "sizes": self.sizes, "switches": self.switches}
        shape = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM}
        return tiny(hidden_size=HIDDEN, mixers=(mixer,), **shape)

    def build(self, device: str = "meta", dtype: str = "bfloat16") -> Any:
        """The module in training, with weights of one precision."""
        torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
        file = importlib.import_module(f"transformers.models.{self.family}.modeling_{self.family}")
        config = getattr(transformers, self.config)(hidden_size=HIDDEN, **self.given, **self.more)
        with torch.device(device):
            return getattr(file, self.module)(config, layer_idx=0).to(getattr(torch, dtype)).train()


MAMBA2 = {"mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 32, "conv_kernel": 4}
SSD = MAMBA2 | {"chunk_size": 32}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
KDA = {"linear_num_heads": 4, "linear_head_dim": 32, "linear_conv_kernel_dim": 4}
BAMBA = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 2, "mamba_d_state": 32, "mamba_expand": 2,
         "mamba_d_conv": 4, "mamba_chunk_size": 32}  # fmt: skip

CASES = {
    "mamba2": Case(
        block="mamba2", family="mamba2", config="Mamba2Config", module="Mamba2Mixer", sizes=SSD,
        given={"num_heads": 8, "head_dim": 64, "n_groups": 2, "state_size": 32, "conv_kernel": 4, "chunk_size": 32},
        switches=("conv_bias", "gated_norm"),
    ),
    "mamba2 with biases": Case(
        block="mamba2", family="mamba2", config="Mamba2Config", module="Mamba2Mixer", sizes=SSD,
        given={"num_heads": 8, "head_dim": 64, "n_groups": 2, "state_size": 32, "conv_kernel": 4, "chunk_size": 32,
               "use_bias": True, "use_conv_bias": False},
        switches=("proj_bias", "out_proj_bias", "gated_norm"),
    ),
    "bamba": Case(
        block="mamba2", family="bamba", config="BambaConfig", module="BambaMixer", sizes=SSD, given=BAMBA,
        switches=("conv_bias", "gated_norm"),
    ),
    "granite": Case(
        block="mamba2", family="granitemoehybrid", config="GraniteMoeHybridConfig", module="GraniteMoeHybridMambaLayer",
        sizes=SSD, given=BAMBA, switches=("conv_bias", "gated_norm"),
    ),
    "nemotron": Case(
        block="mamba2", family="nemotron_h", config="NemotronHConfig", module="NemotronHMamba2Mixer", sizes=SSD,
        given=SSD, switches=("conv_bias", "gated_norm"),
    ),
    "falcon h1": Case(
        block="mamba2", family="falcon_h1", config="FalconH1Config", module="FalconH1Mixer", sizes=SSD,
        given=BAMBA | {"mamba_d_ssm": 512, "mamba_rms_norm": False}, switches=("conv_bias",),
    ),
    "qwen3 next": Case(
        block="gated_delta_net", family="qwen3_next", config="Qwen3NextConfig", module="Qwen3NextGatedDeltaNet",
        sizes=DELTA, given=DELTA, same=False,
    ),
    "qwen3.5": Case(
        block="gated_delta_net", family="qwen3_5", config="Qwen3_5TextConfig", module="Qwen3_5GatedDeltaNet",
        sizes=DELTA, given=DELTA, same=False,
    ),
    "kimi": Case(
        block="kimi_delta_attention", family="kimi_linear", config="KimiLinearConfig",
        module="KimiLinearDeltaAttention", sizes=KDA, given=KDA,
    ),
    "lfm2": Case(
        block="short_conv", family="lfm2", config="Lfm2Config", module="Lfm2ShortConv", sizes={"conv_L_cache": 3},
        given={"conv_L_cache": 3},
    ),
    "lfm2 with biases": Case(
        block="short_conv", family="lfm2", config="Lfm2Config", module="Lfm2ShortConv", sizes={"conv_L_cache": 3},
        given={"conv_L_cache": 3, "conv_bias": True}, switches=("conv_bias",),
    ),
}  # fmt: skip
