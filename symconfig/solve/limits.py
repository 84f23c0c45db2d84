"""What the search may choose on a target: recompute, ZeRO stages, offload and stages, and the masks of its lattice.

A framework's own table of constraints (`Backend.constraints`) says what it refuses; the constraints at the end of this
file exclude from the search what a framework runs and the planner does not price.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.stages import Offload
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention
from symconfig.frameworks import shared
from symconfig.frameworks.constraint import Constraint, Fixed, failing, in_force, possible
from symconfig.frameworks.deepspeed import constraints as deepspeed
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron import constraints as megatron
from symconfig.frameworks.megatron.behaviour import MANY_QUEUES
from symconfig.frameworks.megatron.hybrid import DELTA, hybrid
from symconfig.frameworks.megatron.releases import LAYOUT_MTP_SINCE, LAYOUT_SINCE, RECOMPUTE_SINCE, megatron_release
from symconfig.graph.block import DISCARDING, LAYER
from symconfig.graph.scheme import CpComm
from symconfig.plans.configuration import ZERO_STAGES, ZeroStage
from symconfig.plans.configuration_set import COLUMNS, ConfigurationSet, among, no
from symconfig.solve.stages import Layouts

# Columns that a search chooses apart from the lattice and checks separately.
_CHOSEN = frozenset(
    ("vpp", "group", "zero_stage", "precision", "optimizer_offload", "param_offload", "activation_offload", "recompute")
) | {"recompute_method", "recompute_layers", "recompute_modules"}
_ONE_LAYER = {"recompute_method": "block", "recompute_layers": 1}


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the optimizer state that a search tries to offload


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The search space of a target.

    table: constraints that a point may violate; fixed: facts of the model and job that they read. chosen: columns that
    all points have. every_nth: partial recompute takes each n-th layer, not the first ones. Properties are computed
    when first read.
    """

    table: tuple[Constraint, ...]
    fixed: Fixed
    layouts: Layouts
    cp_comms: tuple[CpComm, ...] = ("p2p", "a2a")
    zero: tuple[ZeroStage, ...] = ZERO_STAGES
    modules: tuple[str, ...] = ()
    block_recompute: bool = False
    full_recompute: bool = True
    every_nth: bool = False
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def refusals(self) -> tuple[Constraint, ...]:
        """Return the constraints to check at each point (tp, cp, …, micro-batch, pp), given the chosen columns. Cached.

        Left out are those that cannot fail, and those that depend only on what the search chooses apart from such
        points, as recompute or the ZeRO stage.
        """
        columns = ((one, one.asks.intersection(COLUMNS)) for one in self._left)
        return tuple(one for one, asked in columns if not asked or not asked <= _CHOSEN)

    @cached_property
    def interleaved(self) -> tuple[Constraint, ...]:
        """Return the constraints that depend on the chunks per stage, to check again with several. Cached."""
        return tuple(one for one in self._left if "vpp" in one.asks)

    @cached_property
    def _left(self) -> tuple[Constraint, ...]:
        return possible(self.table, self.fixed, ConfigurationSet(**self.chosen))

    @cached_property
    def sharded(self) -> tuple[tuple[Constraint, ...], ...]:
        """Return by ZeRO stage the constraints that depend on it and that a point may fail. Cached."""
        asked = [one for one in self.table if "zero_stage" in one.asks]
        points = (ConfigurationSet(**{**self.chosen, "zero_stage": stage}) for stage in ZERO_STAGES)
        return tuple(possible(asked, self.fixed, point) for point in points)

    @cached_property
    def least_stages(self) -> int:
        return 1 if self.runs(pp=1) else 2

    @cached_property
    def least_chunks(self) -> int:
        """Return the fewest chunks per stage in a pipeline: 2 if the target runs only interleaved ones, else 1."""
        return 1 if self.runs(pp=2, vpp=1) or not self.runs(pp=2) else 2

    @cached_property
    def pipeline(self) -> bool:
        return self.runs(pp=2)

    @cached_property
    def activation_offload(self) -> bool:
        return self.runs(activation_offload=True)

    @cached_property
    def offloads(self) -> tuple[tuple[Offload, ...], ...]:
        """Return the optimizer and parameter offloads to try, by ZeRO stage, in shares of SHARES."""
        return tuple(tuple(one for share in SHARES for one in self.offloads_of(zero, share)) for zero in ZERO_STAGES)

    def runs(self, **facts: Any) -> bool:
        """Return whether no constraint refuses these columns, whatever the others are."""
        return not self.lacking(**facts)

    def lacking(self, **facts: Any) -> tuple[Constraint, ...]:
        """Return the constraints that refuse these columns with the chosen ones, whatever the others are.

        Empty if they can run.
        """
        point = ConfigurationSet(**{**self.chosen, **facts})
        failed = {one for one in self.failed if one.asks.isdisjoint(facts)}
        failed |= {*failing([one for one in self.table if not one.asks.isdisjoint(facts)], self.fixed, point)}
        return tuple([one for one in self.table if one in failed])

    @cached_property
    def failed(self) -> frozenset[Constraint]:
        """Return the constraints that the chosen columns alone fail. Cached."""
        return frozenset(failing(self.table, self.fixed, ConfigurationSet(**self.chosen)))

    def choosing(self, chosen: Mapping[str, Any]) -> Limits:
        """Return the limits if all points have these columns, which replace `self.chosen`.

        Modules that cannot be recomputed with them are removed, as are full recompute and recompute of the first layers
        only (block_recompute) where these cannot run.
        """
        limits = replace(self, chosen=chosen)
        full = self.full_recompute and limits.runs(recompute="full")
        return replace(
            limits,
            modules=tuple(
                name for name in self.modules if limits.runs(recompute="selective", recompute_modules=(name,))
            ),
            full_recompute=full,
            block_recompute=self.block_recompute and full and limits.runs(recompute="full", **_ONE_LAYER),
        )

    def zero_refused(self, zero: int, points: ConfigurationSet) -> NDArray[np.bool_]:
        """Return a mask of the points at which the target cannot run the ZeRO stage `zero`, [n]; their own is ignored.

        These are the points that a constraint in `sharded` refuses.
        """
        result = np.zeros(points.dp.shape, dtype=bool)
        if rules := self.sharded[zero]:
            points_at_stage = points.having(zero_stage=zero)
            for constraint in rules:
                result |= constraint.mask(self.fixed, points_at_stage, result.shape)
        return result

    def offloads_of(self, zero: int, share: float) -> tuple[Offload, ...]:
        """Return the offloads with this share (0 to 1) of the optimizer state that run at a ZeRO stage; may be empty.

        A share of 1 is given without and with offload of the parameters, others without only.
        """
        every = (Offload(share), *([Offload(share, True)] if share == 1 else []))
        return tuple(
            one
            for one in every
            if self.runs(zero_stage=zero, optimizer_offload=one.optimizer, param_offload=one.weights)
        )


_OFFLOADED = frozenset(
    {"qkv_proj", "q_proj", "k_proj", "v_proj", "q_up_proj", "kv_up_proj", "flash_attention", "o_proj"}
) | {"scores", "softmax", "attention_dropout", "context"}  # the core, where it is not fused
_OFFLOADED_LATENT = frozenset({"input_norm"})
_OFFLOADED_EXPERTS = frozenset({"mlp_norm", "expert_gate_up_proj", "expert_activation"})


def offloaded(model: ModelDescriptor) -> frozenset[str]:
    """Return the operators whose kept tensors Megatron's fine-grained activation offloading moves to the host."""
    latent = _OFFLOADED_LATENT if model.attention is Attention.MLA else frozenset[str]()
    return _OFFLOADED | latent | (_OFFLOADED_EXPERTS if model.experts else frozenset[str]())


def limits(
    backend: str, version: str, model: ModelDescriptor, fixed: Fixed, closed: Iterable[Constraint] = ()
) -> Limits:
    """Return the search space of a backend's version for a model: constraints, layouts, ZeRO stages and recompute.

    Constraints are the framework's with the planner's own (`narrowed`), then `closed`, those that keep the search from
    options. In targets without model parallelism cp_comm p2p stands for no exchange.
    """
    return _limits(
        (*narrowed(backend, in_force(BACKENDS[backend].constraints, version)), *closed), version, model, fixed
    )


@lru_cache(maxsize=32)
def _limits(every: tuple[Constraint, ...], version: str, model: ModelDescriptor, fixed: Fixed) -> Limits:
    """Return the limits of a model under these constraints, without those that cannot fail given `fixed`. Cached.

    Without pipeline parallelism: no modules to recompute, no layouts but plain ones. Else Megatron-LM's: any cut of
    layers from the version on that supports it; modules that the version has and that apply. With an adapter only ZeRO
    0 and 1, core_attn, and no offload of activations.
    """
    plain = Limits(table=possible(every, fixed, ConfigurationSet()), fixed=fixed, layouts=Layouts(any_cut=False))
    if not plain.pipeline:
        return plain
    # Layouts that Megatron-LM can express. An end that counts as a layer may be alone in its chunk. Multi-token
    # prediction stays with the loss, also from core_v0.16 on, where it need not: elsewhere it makes every message ask
    # for its shape first and wait for the device (p2p_communication.py, _communicate_shapes).
    any_cut = megatron_release(version) >= megatron_release(
        LAYOUT_MTP_SINCE if model.num_nextn_predict_layers else LAYOUT_SINCE
    )
    layouts = Layouts(any_cut, empty_ends=True, mtp_with_head=True, first_last=True, account=True)
    whole = replace(plain, layouts=layouts, block_recompute=True)
    if model.adapter is not None:
        # Megatron-Bridge's. Only whole layers and the core of attention, which trains nothing, are recomputed: a
        # module's own recompute needs an input with a gradient, which Bridge sees to for whole layers alone
        # (peft/recompute.py). Megatron-FSDP and offloaded activations are not known to go with its adapters.
        return replace(whole, table=(*whole.table, ACTIVATIONS_OF_ADAPTERS), zero=(0, 1), modules=("core_attn",))
    number = megatron_release(version)
    there = (name for name, since in RECOMPUTE_SINCE.items() if number >= megatron_release(since))
    experts, latent = model.experts, model.attention is Attention.MLA
    delta = any(mixer.block == DELTA for mixer in model.mixers) and not hybrid(model)
    saves = {  # whether recomputing a module saves anything in this model; others always do
        "moe": experts is not None,
        "moe_act": experts is not None,
        "shared_experts": experts is not None and experts.shared_expert_intermediate_size > 0,
        "layernorm": experts is not None or latent,  # else Transformer Engine's linear layers take their norms in
        "gdn_norm_out": delta,  # of GPTModel's (transformer_config.py, __post_init__)
        "mla_up_proj": latent,
        "mlp": not all(model.moe_layers),
    }
    return replace(whole, modules=tuple(name for name in there if saves.get(name, True)))


def policies(limits: Limits, precision: str, pinned: frozenset[str] = frozenset()) -> tuple[frozenset[str], ...]:
    """Return the sets of modules to recompute: none, every sensible combination, full recompute (if the target can).

    Order: fewer modules first. No set has moe with moe_act or shared_experts inside it. In a precision but bf16 and
    fp16, modules that discard their output are left out unless in `pinned`, as quantised copies would still hold it;
    for fp16 moe_act is left out, pinned or not, which not all releases support.
    """
    discarding = {"bf16": frozenset[str](), "fp16": frozenset({"moe_act"})}.get(precision, DISCARDING - pinned)
    names = [name for name in limits.modules if name not in discarding]
    chosen = [frozenset[str]()]
    for count in range(1, len(names) + 1):
        for group in combinations(names, count):
            if "moe" in group and ("moe_act" in group or "shared_experts" in group):
                continue
            chosen.append(frozenset(group))
    return (*chosen, frozenset({LAYER})) if limits.full_recompute else tuple(chosen)


_OF_CP = partial(Constraint, about="cp")
_WINDOWED = partial(
    _OF_CP, predicate=lambda f, p: (p.cp > 1) & (f.sliding_window > 0), example={"cp": 2, "sliding_window": 1024}
)
HEADS_OVER_RANKS = _OF_CP(
    name="ulysses heads",
    predicate=megatron.ULYSSES_HEADS.predicate,
    rule=megatron.ULYSSES_HEADS.rule,
    sentence="key/value heads that several ranks of all-to-all context parallelism share are not priced",
    divides=True,
    source="solve/space.py: each rank is taken to hold a share of the heads",
    example={"cp": 8, "cp_comm": "a2a", "num_attention_heads": 32, "num_key_value_heads": 4},
)
WINDOWS = _WINDOWED(
    name="context parallel window",
    rule="context parallelism does not go with sliding-window attention here",
    source="graph/blocks/attention.py: ranks hold equal shares of all keys",
)
SINKS = _OF_CP(
    name="context parallel sinks",
    predicate=lambda f, p: (p.cp > 1) & f.attention_sinks,
    rule="context parallelism does not go with attention sinks",
    source="graph/blocks/attention.py",
    example={"cp": 2, "attention_sinks": True},
)
DROPPED_WINDOWS = _WINDOWED(
    name="ulysses window",
    rule="Ulysses drops the mask of a sliding window",
    sentence="Ulysses drops the mask of a sliding window, also of one that no sequence is longer than",
    source="graph/blocks/attention.py",
)
_SHARDED = partial(Constraint, about="zero")
SHARDED_STAGES = _SHARDED(
    name="sharded gradients in a pipeline",
    predicate=lambda f, p: (p.zero_stage >= 2) & (p.pp > 1),
    rule="ZeRO 2 and 3 go without a pipeline",
    sentence="ZeRO {p.zero_stage} beside a pipeline is not priced",
    source="no published layout of Megatron-FSDP has stages: what shows of their gathers is not known",
    example={"zero_stage": 2, "pp": 2},
)
SHARDED_QUEUES = _SHARDED(
    name="sharded gradients beside tensor parallelism",
    predicate=lambda f, p: (p.zero_stage >= 2) & ((p.tp > 1) | (p.cp > 1)) & no(among(f.architecture, MANY_QUEUES)),
    rule="before Blackwell ZeRO 2 and 3 go without tensor and context parallelism",
    sentence=(
        "ZeRO {p.zero_stage} beside tensor or context parallelism is not priced on {f.architecture} GPUs: one wants "
        "many hardware queues, the other a single one"
    ),
    source="megatron/training/arguments.py, validate_args: it warns of CUDA_DEVICE_MAX_CONNECTIONS",
    example={"zero_stage": 2, "tp": 2, "architecture": "hopper"},
)
SHARDED_OVERLAP = _SHARDED(
    name="sharded gradients beside hidden all-to-all",
    predicate=lambda f, p: (p.zero_stage >= 2) & p.overlap_moe_a2a,
    rule="ZeRO 2 and 3 go without hiding the experts' all-to-all",
    sentence="ZeRO {p.zero_stage} beside a hidden all-to-all of the experts is not priced",
    source="core/distributed/fsdp/mcore_fsdp_adapter.py: each of a layer's modules is then gathered by itself",
    example={"zero_stage": 3, "num_experts": 8, "ep": 2, "overlap_moe_a2a": True},
)
STATIC_OFFLOAD = Constraint(
    name="activation offload with fixed buffers",
    predicate=lambda f, p: p.activation_offload & ((p.cuda_graphs == "full iteration") | (p.expert_capacity > 0)),
    rule="activations are not offloaded from a CUDA graph of the whole iteration, nor with an expert capacity",
    about="activation_offload",
    pins=("activation_offload=off",),
    source="transformer_config.py: the graph needs --fine-grained-offloading-max-inflight-offloads, unpriced; "
    "moe/experts.py: kernels with an expert capacity offload nothing",
    example={"activation_offload": True, "cuda_graphs": "full iteration"},
)
ACTIVATIONS_OF_ADAPTERS = Constraint(
    name="activation offload with adapters",
    predicate=lambda f, p: f.adapted & p.activation_offload,
    rule="offloaded activations are not known to go with adapters",
    about="activation_offload",
    source="megatron-bridge, peft/lora.py",
    example={"adapted": True, "activation_offload": True},
)
SHARDED_WEIGHTS = Constraint(
    name="weight shards beside other steps",
    predicate=lambda f, p: (
        (p.gtp > 1) & (no(p.precision == "bf16") | no(p.cuda_graphs == "none") | f.adapted | (f.optimizer == "muon"))
    ),
    rule="weight shards go with bf16 and Adam, without adapters and CUDA graphs",
    sentence="weight shards beside low precision, fp16, CUDA graphs, adapters or Muon are not priced",
    about="gtp",
    pins=("gtp=1", "precision=bf16", "cuda_graphs=none"),
    source="graph/layout.py: weights are gathered in 16 bits and gradients summed as they are accumulated",
    example={"gtp": 2, "dp": 8, "precision": "mxfp8"},
)

# The planner's constraints in addition to a framework's own.
ADDED: Mapping[str, tuple[Constraint, ...]] = {
    "megatron": (SHARDED_STAGES, SHARDED_QUEUES, SHARDED_OVERLAP, SHARDED_WEIGHTS, STATIC_OFFLOAD),
    "deepspeed": (),
    "fsdp": (),
}
# The planner's constraints in place of a framework's own.
NARROWER: Mapping[Constraint, tuple[Constraint, ...]] = {
    megatron.WINDOWS_OVER_RING: (WINDOWS, SINKS),
    shared.ULYSSES_HEADS: (HEADS_OVER_RANKS,),
    shared.ULYSSES_KV_HEADS: (),
    deepspeed.ULYSSES_WINDOW: (DROPPED_WINDOWS,),
}


def narrowed(backend: str, constraints: Iterable[Constraint]) -> Iterator[Constraint]:
    """Yield the constraints that the planner adds for a backend (a key of ADDED), then the framework's.

    A framework's constraint that is a key of NARROWER is replaced by the planner's there, which may be none.
    """
    yield from ADDED[backend]
    for constraint in constraints:
        yield from NARROWER.get(constraint, (constraint,))
