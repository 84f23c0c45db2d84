"""Modules to make programs of, by factories as a user writes them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn


class Bottleneck(nn.Module):
    def __init__(self, given: int, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.narrow, self.norm1 = nn.Conv2d(given, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.window, self.norm2 = nn.Conv2d(wide, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide)
        self.widen, self.norm3 = nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        changed = given != out or stride != 1
        self.skip = (
            nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if changed else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.narrow(x)))
        y = self.relu(self.norm2(self.window(y)))
        y = self.norm3(self.widen(y))
        y += x if self.skip is None else self.skip(x)
        return self.relu(y)


class WideResNet(nn.Module):
    """Of bottlenecks (He et al. 2016) whose windows are `width` times as wide (Zagoruyko and Komodakis 2016)."""

    def __init__(self, layers: tuple[int, ...], width: int, classes: int, channels: int = 64) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)
        self.relu, self.shrink = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        blocks, given = [], channels
        for stage, count in enumerate(layers):
            base = channels * 2**stage
            for number in range(count):
                blocks.append(Bottleneck(given, base * width, base * 4, 2 if stage and not number else 1))
                given = base * 4
        self.blocks = nn.Sequential(*blocks)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(given, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.shrink(self.relu(self.norm(self.stem(images))))
        x = torch.flatten(self.pool(self.blocks(x)), 1)
        return nn.functional.cross_entropy(self.head(x), labels)


def wide_resnet(layers: tuple[int, ...] = (1, 2), pixels: int = 64) -> tuple[nn.Module, Any]:
    module = WideResNet(layers, 2, 1000)
    return module, (torch.zeros(8, 3, pixels, pixels), torch.zeros(8, dtype=torch.long))


def resnet_of_100k_classes() -> tuple[nn.Module, Any]:
    """TAP's case (arXiv 2302.00247): the classifier has most of the weights."""
    module = WideResNet((1, 1), 1, 100_000, channels=8)
    return module, (torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.long))


def wide_resnet_50() -> tuple[nn.Module, Any]:
    return wide_resnet((3, 4, 6, 3), 224)


def tokens(batch: int, seq_length: int) -> dict[str, Any]:
    return {
        "input_ids": torch.zeros(batch, seq_length, dtype=torch.long),
        "labels": torch.zeros(batch, seq_length, dtype=torch.long),
        "use_cache": False,
    }


def gpt2(batch: int = 4, seq_length: int = 32, **config: Any) -> tuple[nn.Module, Any]:
    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**(small | config))), tokens(batch, seq_length)


def gpt2_eager() -> tuple[nn.Module, Any]:
    return gpt2(attn_implementation="eager")


def gpt2_xl() -> tuple[nn.Module, Any]:
    return gpt2(8, 1024, n_layer=48, n_embd=1600, n_head=25, vocab_size=50257, n_positions=1024)


def t5(**config: Any) -> tuple[nn.Module, Any]:
    small = {"num_layers": 2, "d_model": 64, "d_ff": 256, "num_heads": 4, "d_kv": 16, "vocab_size": 1000}
    config = transformers.T5Config(**(small | config), decoder_start_token_id=0)
    inputs = tokens(4, 32) | {"labels": torch.zeros(4, 24, dtype=torch.long)}
    return transformers.T5ForConditionalGeneration(config), inputs


def t5_plain() -> tuple[nn.Module, Any]:
    return t5(dropout_rate=0.0)


LLAMA = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 8, "num_key_value_heads": 2}


def llama(batch: int = 4, seq_length: int = 32, **config: Any) -> tuple[nn.Module, Any]:
    small = LLAMA | {"num_hidden_layers": 2, "vocab_size": 1000}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(small | config))), tokens(batch, seq_length)


def llama_7b() -> tuple[nn.Module, Any]:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    return llama(1, 4096, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, vocab_size=32000, **heads)


def mixtral() -> tuple[nn.Module, Any]:
    config = transformers.MixtralConfig(
        **LLAMA, num_hidden_layers=2, vocab_size=1000, num_local_experts=8, num_experts_per_tok=2
    )
    return transformers.MixtralForCausalLM(config), tokens(4, 32)


class Unknown(nn.Module):
    """Uses operators that nobody has a rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.special.bessel_j0(self.first(x))
        return torch.linalg.matrix_exp(self.second(x).view(2, 2, 8, 8)).sum() + torch.special.bessel_j0(x).sum()


def unknown() -> tuple[nn.Module, Any]:
    return Unknown(), torch.zeros(4, 8, 8)


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.sum().item() > 0:
            y = y * 2
        return y.sum()


def dynamic() -> tuple[nn.Module, Any]:
    return Dynamic(), torch.zeros(4, 8)


def gpt2_plain() -> tuple[nn.Module, Any]:
    return gpt2(attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
WORDS = SMALL | {"vocab_size": 512}


def bert() -> tuple[nn.Module, Any]:
    config = transformers.BertConfig(**WORDS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    inputs = tokens(4, 16)
    del inputs["use_cache"]
    return transformers.BertForMaskedLM(config), inputs


def gemma2() -> tuple[nn.Module, Any]:
    config = transformers.Gemma2Config(**WORDS, num_key_value_heads=2, head_dim=16)
    return transformers.Gemma2ForCausalLM(config), tokens(4, 16)


def qwen3_moe() -> tuple[nn.Module, Any]:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = transformers.Qwen3MoeConfig(**WORDS, **experts, num_key_value_heads=2, head_dim=16)
    return transformers.Qwen3MoeForCausalLM(config), tokens(4, 16)


def opt() -> tuple[nn.Module, Any]:
    config = transformers.OPTConfig(
        hidden_size=64, ffn_dim=128, num_attention_heads=4, num_hidden_layers=2, vocab_size=512, dropout=0.0,
        word_embed_proj_dim=64,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config), tokens(4, 16)


def vit() -> tuple[nn.Module, Any]:
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=10)
    return transformers.ViTForImageClassification(config), images(32)


def convnext() -> tuple[nn.Module, Any]:
    config = transformers.ConvNextConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 64], num_labels=10)
    return transformers.ConvNextForImageClassification(config), images(64)


def images(pixels: int) -> dict[str, Any]:
    return {"pixel_values": torch.zeros(4, 3, pixels, pixels), "labels": torch.zeros(4, dtype=torch.long)}
