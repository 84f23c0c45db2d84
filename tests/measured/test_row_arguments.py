"""Rows with Megatron-LM's arguments: what they state beside these is taken in, refused, or said to be ignored."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.measurements import MeasuredOptions, Row
from symconfig.errors import InputError
from symconfig.measured.assumptions import KINDS
from symconfig.measured.cases import Case, case
from symconfig.measured.row_options import _TYPES
from symconfig.solve.predict import predict

LLAMA = {
    "num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32, "ffn-hidden-size": 14336, "swiglu": True,
    "group-query-attention": True, "num-query-groups": 8, "normalization": "RMSNorm", "disable-bias-linear": True,
    "position-embedding-type": "rope", "untie-embeddings-and-output-weights": True, "hidden-dropout": 0.0,
    "attention-dropout": 0.0,
}  # fmt: skip
SHARDED = {"use-distributed-optimizer": True, "sequence-parallel": True, "overlap-grad-reduce": True}
RUN = {"overlap-param-gather": True, "attention-backend": "flash"} | SHARDED
STATED = {"name": "llama3.1-8b", "vocab_size": 128_256}


def of(
    arguments: dict[str, Any], model: dict[str, Any] | None = None, task: str = "pretrain", **options: object
) -> Case:
    """The case of Llama 3.1 8B on 16 GPUs of H100."""
    row = {
        "id": "a",
        "confidence": "exact",
        "task": task,
        "model": model or STATED,
        "cluster": {"gpu": "h100", "gpus": 16, "gpus_per_node": 8},
        "software": {"name": "megatron"},
        "parallel": {"tp": 2, "pp": 2, "cp": 2, "dp": 2},
        "batch": {"micro": 1, "global": 32, "seq_length": 4096},
        "options": {"megatron_args": arguments, **options},
        "measured": {"step_s": 1.0},
    }
    return case("mine", Row.model_validate(row, strict=False))


WORDS = {
    "attention_kernel": ("flash", "unfused", "flash2"),
    "ends_as_layers": ((0, 0), (1, 1)),
    "fsdp": (True, False),
    "fsdp_mixed_precision": ("PURE", "FULL"),
    "layout": ("Et*8|t*8|t*8|t*8L", "Et*9|t*7|t*8|t*8L"),
    "megatron_args": (),
    "precision": ("bf16", "fp16", "fp8", "mxfp8"),
    "overlap": ({"grad_reduce": True}, {"grad_reduce": False}, {"tp_comm": True}),
    "recompute": ("none", "selective", "full"),
    "recompute_method": ("uniform", "block"),
    "recompute_modules": (("core_attn",), ("mlp",)),
    "transformer_impl": ("local", "transformer_engine"),
    "cp_comm": ("p2p", "a2a", "all_gather"),
    "zero1_group": (-1, 2),
}


def _values(name: str, kind: Any) -> tuple[Any, ...]:
    """Values of an option that are not the same."""
    if name in WORDS:
        return WORDS[name]
    choices = [one for part in (kind, *get_args(kind)) if get_origin(part) is Literal for one in get_args(part)]
    return tuple(choices) or ((True, False) if bool in (kind, *get_args(kind)) else (1, 2, 4))


OPTIONS = {
    **{name: field.annotation for name, field in MeasuredOptions.model_fields.items()}, **KINDS, **_TYPES
}  # fmt: skip


@cache
def _shape(arguments: str) -> dict[str, Any]:
    return {"whole": LLAMA | RUN, "bare": LLAMA, "no shape": RUN}[arguments]


@pytest.mark.parametrize("arguments", ["whole", "bare", "no shape"])
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_no_option_of_a_row_is_passed_over_in_silence(name: str, arguments: str) -> None:
    """Of two values either one is said to be ignored or refused, or they are predicted otherwise."""
    said = []
    for value in _values(name, OPTIONS[name]):
        try:
            found = of(_shape(arguments), **{name: value})
        except InputError:
            continue
        if not any(one.startswith(f"{name}: ") for one in found.ignored) and value is not False:
            said.append((value, found.configuration))
    for index, (value, configuration) in enumerate(said):
        for other, same in said[index + 1 :]:
            assert configuration != same, (value, other)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"precision": "fp8"}, {"precision": "fp8"}),
        ({"precision": "mxfp8"}, {"precision": "mxfp8"}),
        ({"recompute": "full"}, {"recompute": "full", "recompute_method": "uniform"}),
        ({"recompute": "full", "recompute_method": "block", "recompute_layers": 3}, {"recompute_layers": 3}),
        ({"recompute": "selective", "recompute_modules": ("mlp",)}, {"recompute_modules": ("mlp",)}),
        ({"sequence_parallel": True, "zero_stage": 1}, {"sequence_parallel": True, "zero_stage": 1}),
        ({"overlap": {"tp_comm": True}}, {"overlap_tp_comm": True}),
    ],
)
def test_an_option_stands_in_where_the_arguments_have_none(options: dict[str, Any], changed: dict[str, Any]) -> None:
    found = of(LLAMA, **options)
    assert {name: getattr(found.configuration, name) for name in changed} == changed
    assert found.ignored == ()


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"precision": "fp8"}, ("precision: fp8",)),
        ({"attention_kernel": "unfused", "zero_stage": 3}, ("attention_kernel: unfused", "zero_stage: 3")),
        ({"sequence_parallel": True, "zero_stage": 1, "attention_kernel": "flash"}, ()),
        ({"recompute": "full"}, ("recompute: full",)),
    ],
)
def test_an_option_that_the_arguments_contradict_is_ignored(options: dict[str, Any], ignored: tuple[str, ...]) -> None:
    stated = LLAMA | RUN | {"bf16": True, "recompute-granularity": "selective"}
    found = of(stated, **options)
    assert found.ignored == ignored
    assert found.configuration == of(stated).configuration


def test_kernels_that_no_argument_names_are_the_rows() -> None:
    found = of(LLAMA, attention_kernel="unfused", adam_bytes=54.0).configuration.framework
    assert (found.implementation.attention.kernel, found.adam_bytes) == ("fused_softmax", 54.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 16),
        ("hidden_size", 2048),
        ("num_key_value_heads", 4),
        ("norm", "layernorm"),
        ("gated_mlp", False),
        ("tie_word_embeddings", True),
        ("position", "learned"),
        ("num_experts_per_tok", 2),
        ("kv_lora_rank", 512),
        ("first_k_dense", 1),
    ],
)
def test_a_model_that_the_arguments_contradict_is_refused(field: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"model\.{field}: is not what the row's megatron_args say"):
        of(LLAMA | RUN, STATED | {field: value})


def test_fields_of_a_model_stand_in_where_the_arguments_have_none() -> None:
    bare = {name: LLAMA[name] for name in ("num-layers", "hidden-size", "num-attention-heads", "disable-bias-linear")}
    own = {"intermediate_size": 14336, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False}
    words = {"gated_mlp": True, "norm": "rmsnorm", "position": "rope"}
    found = of(bare, STATED | own | words).model
    assert {name: getattr(found, name) for name in own | words} == own | words
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    mixture = of(bare, STATED | own | words | experts).model.experts
    assert {name: getattr(mixture, name) for name in experts} == experts
    assert of(LLAMA, STATED | {"mtp_num_layers": 1}).model.num_nextn_predict_layers == 1


def test_a_public_models_vocabulary_is_its_own() -> None:
    """A model of the zoo with the same shape has another one."""
    named = of(LLAMA | RUN, {"name": "llama3.1-8b"})
    assert named.model.vocab_size == load_model("llama3.1-8b").vocab_size
    assert named.taken == of(LLAMA | RUN).taken
    assert of(LLAMA | RUN | {"vocab-size": 32_000}).ignored == ("model.vocab_size: 128256",)


@pytest.mark.parametrize("arguments", [LLAMA | RUN, RUN])
def test_a_lora_rows_adapter_is_on_the_model_of_its_arguments(arguments: dict[str, Any]) -> None:
    lora = {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": ["linear_qkv", "linear_proj"]}
    found, whole = of(arguments, STATED | {"lora": lora}, "lora"), of(arguments)
    adapter = found.model.adapter
    assert adapter is not None
    assert (adapter.r, adapter.lora_alpha, adapter.target_modules) == (16, 32, ("qkv_proj", "o_proj"))
    small, large = (predict(one.model, one.cluster, one.configuration).predicted for one in (found, whole))
    assert small.peak_bytes < large.peak_bytes / 2
    with pytest.raises(InputError, match="rank and targets of LoRA are not stated"):
        of(arguments, STATED, "lora")


def test_an_argument_of_no_release_is_ignored_by_name() -> None:
    given = {"nonsense-option": 3, "encoder-num-layers": 32, "vocab-size": 128_256}
    assert of(LLAMA | RUN | given).ignored == ("megatron_args: nonsense-option",)
