"""Layers of blocks in attention's place from Megatron's own modules, where its specs know Transformer Engine's only.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. The same weights, split the same way;
a norm that Transformer Engine has inside of a linear layer stands before it. The scans are kernels of other packages
(mamba-ssm, flash-linear-attention), which have no weights: their absence is no reason not to build.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any


def scans() -> None:
    """Patch Mamba's mixer and gated delta nets to be built without the packages of their kernels; modules that the
    release lacks are skipped. A delta net uses its torch function, if the release has one; Mamba's norm is a weight
    only, which cannot run.
    """
    import torch

    for name in ("gated_delta_net", "gated_delta_net.common", "gated_delta_net.gdn"):  # one module before core_v0.19
        with contextlib.suppress(ImportError):
            delta: Any = importlib.import_module(f"megatron.core.ssm.{name}")
            delta.HAVE_FLA = True
            delta.chunk_gated_delta_rule = getattr(delta, "torch_chunk_gated_delta_rule", None)
    with contextlib.suppress(ImportError):
        mamba: Any = importlib.import_module("megatron.core.ssm.mamba_mixer")

        class Normed(torch.nn.Module):  # type: ignore[misc]
            """mamba-ssm's RMSNormGated: one weight for each channel of this rank."""

            def __init__(self, width: int, device: Any = None, dtype: Any = None, **_: Any) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.empty(width, device=device, dtype=dtype))

        mamba.HAVE_MAMBA_SSM, mamba.ExtendedRMSNorm = True, Normed
        mamba.get_cuda_rng_tracker = _Unforked  # generators of a GPU


class _Unforked:
    """A stand-in for megatron.core.tensor_parallel.random: a tracker whose generators nothing draws from."""

    @contextlib.contextmanager
    def fork(self, *_: Any) -> Iterator[None]:
        yield


def _whole_linear() -> Any:
    """Return the class of a linear layer without bias, replicated over tensor-parallel ranks, whose forward gives
    (output, None) as Megatron's layers do.
    """
    import torch

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, input_size: int, output_size: int, *, config: Any, **_: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
            self.weight.sequence_parallel = config.sequence_parallel

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.linear(x, self.weight), None

    return Whole


def variants() -> None:
    """Patch the specs of GPTModel's layers with a gated delta net or sparse attention to use Megatron's own modules."""
    specs: Any = importlib.import_module("megatron.core.models.gpt.experimental_attention_variant_module_specs")
    gpt = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    provider: Any = importlib.import_module("megatron.core.models.backends").LocalSpecProvider

    class Backend(provider):  # type: ignore[misc]
        def linear(self) -> Any:
            return whole

    whole, backend, parts = _whole_linear(), Backend(), _Parts()
    with contextlib.suppress(ImportError):  # which layers it takes to be whole
        absorbed: Any = importlib.import_module("megatron.core.transformer.experimental_attention_variant.absorbed_mla")
        absorbed.TELinear = whole

    def delta(config: Any, backend: Any = None) -> Any:
        made = parts.delta()
        made.metainfo = {"fuse_input_layernorm": False}
        return made

    def attention(config: Any, backend: Any = None) -> Any:
        """Return the spec of Megatron's own self-attention, whose input norm is not fused."""
        made = gpt.get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm,
            multi_latent_attention=config.multi_latent_attention,
            normalization=config.normalization,
            qk_l2_norm=config.qk_l2_norm,
        ).submodules.self_attention
        made.metainfo = {"fuse_input_layernorm": False}
        return made

    specs._get_backend_spec_provider = lambda config: backend
    specs.get_gated_delta_net_module_spec = delta
    specs._get_self_attention_module_spec = attention


def hybrid(config: Any) -> Any:
    """Return the spec of HybridModel's stack of Megatron's own modules, as hybrid_layer_specs.py has it. Patches the
    stack's TENorm for good.
    """
    parts = _Parts()
    block: Any = importlib.import_module("megatron.core.models.hybrid.hybrid_block")
    block.TENorm = parts.norm
    layer = importlib.import_module("megatron.core.transformer.transformer_layer")
    mixer = importlib.import_module("megatron.core.ssm.mamba_layer")
    mlp = importlib.import_module("megatron.core.ssm.mlp_layer")
    kind, inner = layer.TransformerLayer, layer.TransformerLayerSubmodules
    experts = getattr(layer, "MoETransformerLayer", kind)
    return parts.spec(
        block.HybridStack,
        block.HybridStackSubmodules(
            mamba_layer=parts.spec(
                mixer.MambaLayer, mixer.MambaLayerSubmodules(norm=parts.norm, mixer=parts.mamba(), mamba_bda=parts.add)
            ),
            gdn_layer=parts.spec(
                kind, inner(input_layernorm=parts.norm, self_attention=parts.delta(), self_attn_bda=parts.add)
            ),
            attention_layer=parts.spec(
                kind, inner(input_layernorm=parts.norm, self_attention=parts.attention(config), self_attn_bda=parts.add)
            ),
            mlp_layer=parts.spec(mlp.MLPLayer, inner(pre_mlp_layernorm=parts.norm, mlp=parts.mlp(), mlp_bda=parts.add)),
            moe_layer=parts.spec(
                experts, inner(pre_mlp_layernorm=parts.norm, mlp=parts.experts(config), mlp_bda=parts.add)
            ),
            mtp_block_spec=parts.predictions(),
        ),
    )


class _Parts:
    """Megatron's own modules, and the specs of what is made of them."""

    def __init__(self) -> None:
        layers = importlib.import_module("megatron.core.tensor_parallel")
        self.columns, self.rows = layers.ColumnParallelLinear, layers.RowParallelLinear
        self.norm = importlib.import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm
        self.add = importlib.import_module("megatron.core.fusions.fused_bias_dropout").get_bias_dropout_add
        self._spec = importlib.import_module("megatron.core.transformer.spec_utils").ModuleSpec

    def spec(self, module: Any, submodules: Any, **more: Any) -> Any:
        return self._spec(module=module, submodules=submodules, **more)

    def mamba(self) -> Any:
        module = importlib.import_module("megatron.core.ssm.mamba_mixer")
        inner = module.MambaMixerSubmodules(in_proj=self.columns, out_proj=self.rows)
        return self.spec(module.MambaMixer, inner)

    def delta(self) -> Any:
        module = importlib.import_module("megatron.core.ssm.gated_delta_net")
        inner = module.GatedDeltaNetSubmodules(in_proj=self.columns, out_norm=self.norm, out_proj=self.rows)
        return self.spec(module.GatedDeltaNet, inner)

    def attention(self, config: Any) -> Any:
        """Return the spec of causal self-attention, with norms of queries and keys if the config has qk_layernorm."""
        module = importlib.import_module("megatron.core.transformer.attention")
        core = importlib.import_module("megatron.core.transformer.dot_product_attention").DotProductAttention
        causal = importlib.import_module("megatron.core.transformer.enums").AttnMaskType.causal
        norms = dict.fromkeys(("q_layernorm", "k_layernorm"), self.norm) if config.qk_layernorm else {}
        inner = module.SelfAttentionSubmodules(
            linear_qkv=self.columns, core_attention=core, linear_proj=self.rows, **norms
        )
        return self.spec(module.SelfAttention, inner, params={"attn_mask_type": causal})

    def mlp(self) -> Any:
        module = importlib.import_module("megatron.core.transformer.mlp")
        inner = module.MLPSubmodules(linear_fc1=self.columns, linear_fc2=self.rows)
        return partial(module.MLP.as_mlp_submodule, submodules=inner)

    def experts(self, config: Any) -> Any:
        specs = importlib.import_module("megatron.core.models.gpt.moe_module_specs")
        return specs.get_moe_module_spec(use_te=False, num_experts=config.num_moe_experts or 1, moe_grouped_gemm=False)

    def predictions(self) -> Any:
        """Return the spec of a block with one layer of multi-token prediction, whose transformer layer stays None."""
        module = importlib.import_module("megatron.core.transformer.multi_token_prediction")
        inner = module.MultiTokenPredictionLayerSubmodules(
            enorm=self.norm, hnorm=self.norm, eh_proj=self.columns, mtp_model_layer=None, layer_norm=self.norm
        )
        layer = self.spec(module.MultiTokenPredictionLayer, inner)
        submodules = module.MultiTokenPredictionBlockSubmodules(layer_specs=[layer])
        return self.spec(module.MultiTokenPredictionBlock, submodules)
