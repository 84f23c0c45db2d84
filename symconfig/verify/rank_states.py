"""What one rank of a plan holds between steps: its parameters one by one, and the predicted bytes of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from symconfig.cost.framework import DENSE_GRID, EXPERT_GRID
from symconfig.cost.step import states
from symconfig.errors import InputError, SymconfigError
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.graph import dims as d
from symconfig.graph.derived import DerivedBlock
from symconfig.graph.model import derived, dim_sizes
from symconfig.graph.parts import is_layer
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect

PADDING = 0.01  # of the bytes of a buffer or a shard: padding of buckets and of uneven shards, which is not predicted
_PART = ".weight."  # of the name of a weight's part, before the part's own
# From this release on, a model with multi-token prediction has its final norm behind its last layer, wherever the loss
# is (transformer_block.py, has_final_layernorm_in_this_stage).
_NORM_BEHIND_LAST_LAYER = (0, 16)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter on one rank."""

    name: str
    elements: int
    trainable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the plan predicts for a rank between two steps, in host memory or on the GPU.

    elements, trained: of its parameters, as tensor, expert and pipeline parallelism share them out.
    """

    elements: float
    trained: float
    gradient_bytes: float
    optimizer_bytes: float


def predicted(plan: Plan, stage: int) -> Predicted:
    """Return what the cost model predicts for a rank of a pipeline stage between two steps, without padding:
    parameters, those trained, bytes of gradients and of optimizer state (with the offloaded part). A stage beyond the
    rows of the cost arrays counts as the last row.
    """
    cost = costed(restore(plan, plan.best))
    setting = cost.setting
    # Between steps no gradients wait to be reduced, and host memory counts, too.
    framework = replace(setting.framework, queued_elements=0.0)
    offload = tuple(replace(each, optimizer=0.0) for each in setting.offload)
    parts = states(cost.sums, cost.points, replace(setting, framework=framework, offload=offload))
    place = min(stage, cost.sums.dense.shape[0] - 1)
    trained, frozen = (
        float(sum(part[place, 0] for part in kinds))
        for kinds in (
            (cost.sums.dense, cost.sums.expert),
            (cost.sums.frozen, cost.sums.frozen_expert, cost.sums.quantised),
        )
    )
    return Predicted(
        elements=trained + frozen,
        trained=trained,
        gradient_bytes=float(parts["gradients"][place, 0, 0]),
        optimizer_bytes=float(parts["optimizer state"][place, 0, 0]),
    )


def coordinates(parallel: Configuration, rank: int) -> dict[str, int]:
    """Return {axis: a rank's index} for tp, cp, dp, pp (ranks laid out by DENSE_GRID) and etp, ep, edp (by
    EXPERT_GRID), the innermost axis first; dp counts gtp as its inner part (no key of its own). Raises InputError
    for a rank outside the plan.
    """
    if not 0 <= rank < parallel.world_size:
        need = f"0 to {parallel.world_size - 1}"
        raise InputError("the plan has no such rank", field="rank", got=str(rank), need=need)
    places: dict[str, int] = {}
    for grid, axes in ((DENSE_GRID, "tp gtp cp dp pp"), (EXPERT_GRID, "etp ep edp")):
        left = rank
        for axis in grid:  # the innermost first
            ranks = parallel.dp // parallel.gtp if axis == "dp" else getattr(parallel, axis)
            left, place = divmod(left, ranks)
            if axis in axes.split():
                places[axis] = place
    return places | {"dp": places["dp"] * parallel.gtp + places.pop("gtp")}


def stage_of(parallel: Configuration, rank: int) -> int:
    """Return the pipeline stage of a rank."""
    return rank // (parallel.world_size // parallel.pp)


def with_local_layers(plan: Plan) -> Prospect:
    """Return the plan as a candidate with Megatron-LM's own layers in place of Transformer Engine's. It offloads no
    activations (training/arguments.py, validate_args), and its attention has no context parallelism
    (transformer/dot_product_attention.py): cp ranks become data-parallel ones with shorter sequences.
    """
    point = restore(plan, plan.best)
    framework = usual(plan.best.target.backend, plan.cluster.gpu.architecture, "local", plan.job.attention)
    framework = replace(framework, hide=point.request.framework.hide)
    p = point.configuration
    return replace(
        point,
        request=replace(point.request, framework=framework).having(seq_length=p.seq_length // p.cp),
        configuration=replace(p, cp=1, dp=p.dp * p.cp, seq_length=p.seq_length // p.cp, activation_offload=False),
    )


def chunk_parameters(plan: Plan, stage: int) -> tuple[tuple[Parameter, ...], ...]:
    """Return the parameters of each virtual stage on a rank of a pipeline stage, with Megatron-LM's own layers. Raises
    SymconfigError if ep does not divide the experts or a weight cannot be cut evenly.
    """
    point = with_local_layers(plan)
    p, model = point.configuration, point.request.model
    numbers = {name: int(size) for name, size in dim_sizes(model).items()}
    numbers |= {name: getattr(p, name) for name in ("tp", "gtp", "cp", "ep", "etp", "dp")}
    numbers[d.VOCAB] = point.request.framework.padded_vocab(model.vocab_size, p.tp)
    if model.experts and numbers[d.EXPERTS] % p.ep:
        raise SymconfigError(f"{numbers[d.EXPERTS]} experts do not divide over ep {p.ep}")
    blocks = derived(model, point.request.framework.implementation, point.scheme)
    known = {kind: tuple(_of_block(block, numbers)) for kind, block in blocks.items()}
    return tuple(
        tuple(_of_chunk(point, index, known)) for index in range(stage, len(point.split.chunks), point.split.pp)
    )


def _of_block(block: DerivedBlock, numbers: Mapping[str, int]) -> Iterator[Parameter]:
    """Yield the parameters of a block on one rank, expert by expert; parts of one weight are joined. Raises
    SymconfigError if a weight does not divide evenly.
    """
    shards = sorted(block.weights, key=lambda shard: shard.name.partition(_PART)[0])
    for name, group in groupby(shards, key=lambda shard: shard.name.partition(_PART)[0]):
        parts = list(group)
        experts = numbers[d.EXPERTS] // numbers["ep"] if parts[0].expert else 1
        try:
            elements = sum(part.elements.whole(numbers) for part in parts)
        except ValueError as error:
            raise SymconfigError(f"the weight {name} cannot be cut into equal parts: {error}") from None
        for expert in range(experts):
            own = f"{name}.{expert}" if parts[0].expert else name
            yield Parameter(own, elements // experts, not parts[0].frozen)


def _of_chunk(point: Prospect, index: int, known: Mapping[str, Sequence[Parameter]]) -> Iterator[Parameter]:
    """Yield the parameters of a virtual stage, given its index in model order; names of layers and predictions are
    numbered within it. known: parameters by kind of block.

    The embedding is added to a chunk with multi-token prediction but without it. Of the head, lm_head is on its chunk
    unless tied to an embedding there; the final norm is on the last chunk, or from release _NORM_BEHIND_LAST_LAYER on,
    for models with predictions, on that of the last layer.
    """
    chunks, model = point.split.chunks, point.request.model
    kinds, layers = chunks[index], dict.fromkeys(("layers", "mtp"), 0)
    for kind in kinds:
        if kind == "head":
            continue
        section = "layers" if is_layer(kind) else kind
        prefix = ""
        if section in layers:
            prefix, layers[section] = f"{section}.{layers[section]}.", layers[section] + 1
        yield from (replace(one, name=f"{prefix}{one.name}") for one in known[kind])
    if "mtp" in kinds and "embedding" not in kinds:  # it looks up the next tokens itself (gpt_model.py)
        yield from known["embedding"]
    behind = megatron_release(point.request.version) >= _NORM_BEHIND_LAST_LAYER and model.num_nextn_predict_layers
    last = max((at for at, chunk in enumerate(chunks) if any(map(is_layer, chunk))), default=0)
    operators = ["final_norm"] if index == (last if behind else len(chunks) - 1) else []
    if "head" in kinds and not ("embedding" in kinds and model.tie_word_embeddings):
        operators.append("lm_head")
    yield from (one for one in known["head"] if one.name.partition(".")[0] in operators)
