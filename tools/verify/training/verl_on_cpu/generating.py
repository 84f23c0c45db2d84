"""What serves in vLLM's place: a model of Transformers, which gets the weights tensor by tensor."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers

ENDING = 16  # one in so many words ends a response
PARTS = ("gate", "up", "down")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


class Engine:
    """Generates with Transformers: words are drawn, and a few of them end a response."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        self.sleep_level = 2
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model_config.local_path, dtype=torch.float32)
        self.vocabulary = self.model.config.vocab_size
        self.frozen = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    async def resume(self, tags: list[str]) -> None:
        """Wake, which takes nothing here."""

    async def update_weights(self, weights: Any, peft_config: Any = None, **more: Any) -> None:
        """Take whole weights; of adapters these alone, which are added to the frozen ones."""
        given = {name: tensor.float().clone() for name, tensor in weights}
        if peft_config is not None:
            scale = peft_config["lora_alpha"] / peft_config["r"]
            given = dict(_merged(self.frozen, given, scale))
        missing = self.model.load_state_dict({**self.frozen, **dict(_joined(given))})
        assert not missing.unexpected_keys, missing

    @torch.no_grad()
    def generate(self, prompts: torch.Tensor, most: int, seed: int) -> list[list[int]]:
        """Return a response to each of prompts[B, T]."""
        draw = torch.Generator().manual_seed(seed)
        alive = torch.ones(len(prompts), dtype=torch.bool)
        responses: list[list[int]] = [[] for _ in prompts]
        words, cache = prompts, transformers.DynamicCache()
        for _ in range(most):
            logits = self.model(input_ids=words, past_key_values=cache).logits[:, -1]
            words = torch.multinomial(logits.softmax(-1), 1, generator=draw)
            for place in alive.nonzero().flatten().tolist():
                responses[place].append(int(words[place]))
            alive &= words[:, 0] >= self.vocabulary // ENDING
            if not alive.any():
                break
        return responses


def _merged(
    frozen: dict[str, torch.Tensor], given: dict[str, torch.Tensor], scale: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the frozen weights that have adapters, with these added."""
    for name, down in given.items():
        if ".lora_A." in name:
            target = name.split("base_model.model.")[-1].split(".lora_A.")[0] + ".weight"
            yield target, frozen[target] + scale * given[name.replace(".lora_A.", ".lora_B.")] @ down


def _joined(given: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights, those of a layer's experts in one tensor, as Transformers' modules have them."""
    experts: defaultdict[str, dict[str, dict[int, torch.Tensor]]] = defaultdict(lambda: defaultdict(dict))
    for name, tensor in given.items():
        if (found := EXPERT.fullmatch(name)) is None:
            yield name, tensor
        else:
            experts[found[1]][found[3]][int(found[2])] = tensor
    for name, parts in experts.items():
        gate, up, down = (torch.stack([parts[part][place] for place in sorted(parts[part])]) for part in PARTS)
        yield f"{name}.gate_up_proj", torch.cat([gate, up], dim=1)
        yield f"{name}.down_proj", down
