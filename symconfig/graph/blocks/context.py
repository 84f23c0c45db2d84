"""What every block is given: the model, how its operators are computed, and the builder that collects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.builder import Builder
from symconfig.graph.implementation import Adapters, Implementation
from symconfig.graph.operator import Weight


@dataclass(slots=True)
class Context:
    """A builder with the model and the implementation it builds for. shared_heads: see Scheme. again: another block
    holds the weights that are made now. kind: of the layer that is built."""

    model: ModelDescriptor
    how: Implementation
    build: Builder
    shared_heads: bool = False
    reuses: bool = False
    kind: LayerKind | None = None

    @property
    def frozen(self) -> bool:
        return self.model.adapter is not None

    def weight(self, name: str, *dims: str, shared: bool = False, joined: bool = False) -> Weight:
        """Return a weight of the base model. shared, joined: see Weight."""
        adapter = self.model.adapter
        quantised = adapter is not None and adapter.method == "qlora" and len(dims) > 1 and d.VOCAB not in dims
        return Weight(
            name, dims, gradient=not self.frozen, quantised=quantised, shared=shared or self.reuses, joined=joined
        )

    @property
    def whole_look_up(self) -> bool:
        """Tell whether every tensor-parallel rank has the look-up table and the logits for every token."""
        return self.how.vocabulary.whole_look_up and not self.model.tie_word_embeddings

    def adapted(self, names: Sequence[str]) -> bool:
        return self.model.adapter is not None and any(name in self.model.adapter.target_modules for name in names)

    def separate(self, whole: str, aliases: Sequence[str]) -> bool:
        """Tell whether a fused linear falls apart: when one of its parts has an adapter of its own, unless adapters lie
        beside it. With an adapter beside the whole it is fused, whatever the implementation does with others.
        """
        if self.adapted((whole,)):
            return False
        joined = self.how.linear.joined or whole in self.how.linear.products
        return not joined or (self.adapted(aliases) and self.how.adapters is Adapters.PLAIN)
