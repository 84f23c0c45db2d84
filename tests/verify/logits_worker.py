"""Logits of megatron-core's GPTModel, built from an argument list, on one CPU process. Run as a script by test_logits.

Usage: logits_worker.py REQUEST.pt ANSWER.pt. The request holds `source` (the folder with megatron/), `runners`
(symconfig/verify/runners) and `cases`: by name, `args`, `tokens[B, T]` and `weights` under transformers' names with
their `config`. The answer has the logits by name.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any


def on_cpu() -> Any:
    """Some masks are made on the device "cuda", whatever the model is on."""
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    return OnCpu()


def causal_attention() -> Any:
    """softmax(scale q k + mask) v, with q[T, B, H, d] and v[T, B, H, e]: the local layers have none for MLA."""
    import torch

    class CausalAttention(torch.nn.Module):
        def __init__(self, softmax_scale: float, **kwargs: Any) -> None:
            super().__init__()
            self.softmax_scale = softmax_scale

        def forward(self, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
            scores = torch.einsum("sbhd,tbhd->bhst", query, key) * self.softmax_scale
            shares = scores.masked_fill(attention_mask, float("-inf")).softmax(-1)
            return torch.einsum("bhst,tbhe->sbhe", shares, value).flatten(2)

    return CausalAttention


def build(args: Any, config: Any) -> Any:
    """As gpt_builders.py does, with the local layers instead of Transformer Engine's."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec

    if args.num_experts:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
        for layer in spec.layer_specs if args.multi_latent_attention else ():
            layer.submodules.self_attention.submodules.core_attention = causal_attention()
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=args.normalization)
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        parallel_output=False,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        rope_scaling=args.use_rope_scaling,
    )


def logits(request: dict[str, Any], runner: Any, convert: Any) -> Any:
    """Parse, validate, build, load, run: tokens[B, T] -> logits[B, T, V padded]."""
    import megatron.training.arguments as arguments
    import torch

    sys.argv = ["pretrain_gpt.py", *request["args"]]
    args = arguments.parse_args()
    arguments.validate_args(args, {})
    runner._tokenizer(args)
    if not torch.distributed.is_initialized():
        runner._groups(args, 1, rank=0)
    model = build(args, arguments.core_transformer_config_from_args(args)).eval()
    converted = convert(request["config"], request["weights"], args.padded_vocab_size)
    missing, unexpected = model.load_state_dict(converted, strict=False)
    missing = [name for name in missing if not name.endswith("_extra_state")]
    if missing or unexpected:
        raise SystemExit(f"missing {missing}, unexpected {unexpected}")
    tokens = request["tokens"]
    length = tokens.shape[1]
    mask = torch.triu(torch.ones(1, 1, length, length), diagonal=1).bool()  # True: not seen
    with torch.no_grad(), on_cpu():
        return model(tokens, torch.arange(length).expand_as(tokens), mask)


def main(request_file: str, answer_file: str) -> None:
    import torch

    request = torch.load(request_file, weights_only=False)
    sys.path.insert(0, str(request["runners"]))
    runner = importlib.import_module("megatron_runner")
    del sys.path[0]
    shims, weights = runner.load("megatron_shims"), importlib.import_module("megatron_weights")
    shims.install(Path(request["source"]))
    os.environ.update(WORLD_SIZE="1", RANK="0", LOCAL_RANK="0")
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    shims.claim_gpu((8, 0), 80 * 10**9, 108)
    shims.claim_transformer_engine("2.9.0")
    torch.cuda.current_device = lambda: torch.device("cpu")
    # GPU generators, for dropout; every weight is overwritten and dropout is off in eval.
    get_cuda_rng_tracker().fork = lambda *names: contextlib.nullcontext()
    torch.save({name: logits(case, runner, weights.convert) for name, case in request["cases"].items()}, answer_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
