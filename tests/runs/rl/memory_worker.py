"""Live bytes of what verl's Megatron workers run, counted on a tiny GPTModel on one CPU process. Run by test_memory.

Usage: memory_worker.py REQUEST.json ANSWER.json. The request has `config` (fields of TransformerConfig), `tokens`,
`vocabularies` and `patches` (symconfig/verify/runners/megatron_patches.py); the answer by vocabulary and phase `kept`
(bytes when the forward ends) and `peak`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts the bytes of every storage that an operator makes, until it is freed."""

    def __init__(self, own: list[torch.Tensor]) -> None:
        super().__init__()
        self.held = {tensor.untyped_storage()._cdata: 0 for tensor in own}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.held:
                storage = tensor.untyped_storage()
                self.held[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage._cdata)
        return output

    def _freed(self, key: int) -> None:
        self.now -= self.held.pop(key)


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what Megatron makes on its GPU."""

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Entropy(torch.autograd.Function):
    """Entropy of logits[B, T, V], which keeps the logits and their softmax and makes its gradient in the softmax."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        most = logits.max(dim=-1, keepdim=True).values
        shares = (logits - most).exp_()
        total = shares.sum(dim=-1, keepdim=True)
        shares.div_(total)
        mean = torch.einsum("btv,btv->bt", shares, logits).unsqueeze(
            -1
        )  # one kernel, as the compiled product and sum are
        ctx.save_for_backward(logits, shares, mean)
        return (most + total.log() - mean).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        logits, shares, mean = ctx.saved_tensors
        return shares.mul_(logits.sub_(mean)).mul_(-gradient.unsqueeze(-1))


def outputs(logits: torch.Tensor, labels: torch.Tensor, temperature: torch.Tensor, entropy: bool) -> list[torch.Tensor]:
    """Log-probabilities of the labels, and the entropy: what verl 0.9.1 does with a model's logits
    (workers/engine/megatron/transformer_impl.py, _lm_head_logits_processor)."""
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    logits.div_(temperature.unsqueeze(-1))
    kept = logits.clone() if entropy else logits
    more = [Entropy.apply(logits)] if entropy else []
    return [-vocab_parallel_cross_entropy(kept, labels), *more]


def model(request: dict[str, Any], vocabulary: int) -> Any:
    """Build the model as verl does, with local layers."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import Float16Module

    fixed = {"bf16": True, "params_dtype": torch.bfloat16, "activation_func": torch.nn.functional.silu}
    config = TransformerConfig(**request["config"], **fixed)
    built = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization=config.normalization),
        vocab_size=vocabulary,
        max_sequence_length=request["tokens"],
        parallel_output=True,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    return Float16Module(config, built)


def counted(built: Any, tokens: int, vocabulary: int, gradients: bool, entropy: bool) -> dict[str, int]:
    """Run one phase, and its backward if it has gradients."""
    from megatron.core import parallel_state

    labels = torch.randint(0, vocabulary, (1, tokens))
    places, mask = torch.arange(tokens)[None], torch.ones(1, 1, tokens, tokens).triu(1).bool()
    temperature = torch.ones(1, tokens)
    buffers = parallel_state.get_global_memory_buffer().buffer.values()  # made once, for all
    live = Live([*built.parameters(), *built.buffers(), *buffers, labels, places, mask, temperature])
    with OnCpu(), live, torch.set_grad_enabled(gradients):
        made = outputs(built(labels, places, mask), labels, temperature, entropy)
        gc.collect()
        kept = live.now
        if gradients:
            loss = -(made[0] - made[0].detach()).exp().mean() - (0.01 * made[1].mean() if entropy else 0.0)
            made.clear()
            loss.backward()
    for weight in built.parameters():
        weight.grad = None
    return {"kept": kept, "peak": live.peak}


def main(request_file: str, answer_file: str) -> None:
    request = json.loads(Path(request_file).read_text())
    torch.compile = lambda function=None, **asked: function or (lambda inner: inner)  # type: ignore[assignment]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    parallel_state.initialize_model_parallel()
    get_cuda_rng_tracker().fork = lambda *names: contextlib.nullcontext()
    spec = importlib.util.spec_from_file_location("patches", request["patches"])
    spec.loader.exec_module(patches := importlib.util.module_from_spec(spec))
    torch.nn.functional.rms_norm = patches.rms_norm  # type: ignore[assignment]
    answer = {}
    for vocabulary in request["vocabularies"]:
        built, sizes = model(request, vocabulary), (request["tokens"], vocabulary)
        counted(built, *sizes, gradients=True, entropy=False)  # what is made once is made
        answer[vocabulary] = {
            "log-probabilities": counted(built, *sizes, gradients=False, entropy=True),
            "reference": counted(built, *sizes, gradients=False, entropy=False),
            "update": counted(built, *sizes, gradients=True, entropy=False),
            "update with entropy": counted(built, *sizes, gradients=True, entropy=True),
        }
    Path(answer_file).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
