"""Published training layouts: what others tuned or shipped, as data. One file a model, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from symconfig.descriptor.document import called, load_yaml_strict
from symconfig.descriptor.strict import PositiveInt, Strict, validate
from symconfig.errors import InputError, nearest
from symconfig.resources import data_dir

ENDS_AS_LAYERS = "ends as layers"  # the embedding and the loss each take a layer's place


def spelled(value: object) -> str:
    """Return a value as text: floats as percent, bools as on or off."""
    if isinstance(value, float):
        return f"{value:.0%}"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


class RecipeSource(Strict):
    """A place where recipes are published. Papers have no repository."""

    title: str = Field(min_length=1)
    repository: str | None = None
    release: str = Field(min_length=1, description="release or commit, or the year of a paper")


class RecipeJob(Strict):
    """The job that a recipe trains; its model is that of the file."""

    cluster: str = Field(min_length=1)
    gpus: PositiveInt
    global_batch_size: PositiveInt
    seq_length: PositiveInt
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"] = "bf16"
    task: Literal["pretrain", "sft"] = "pretrain"


class Layout(Strict):
    """The split of a recipe's job. A degree that is absent is 1; anything else that is absent was not stated."""

    tp: PositiveInt = 1
    pp: PositiveInt = 1
    vpp: PositiveInt = 1
    cp: PositiveInt = 1
    ep: PositiveInt = 1
    etp: PositiveInt = 1
    micro: PositiveInt | None = None
    sp: bool | None = None
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    recompute: str | None = Field(default=None, description="none, selective:MODULES, full, or full:block:LAYERS")
    stages: str | None = Field(default=None, description="Megatron's layout string, or `ends as layers`")

    @property
    def degrees(self) -> dict[str, int]:
        """Return tp, pp, vpp, cp, ep and etp by name."""
        return {name: getattr(self, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")}


class RecipeOptions(Strict):
    """Switches that a recipe states."""

    dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep"] | None = None
    tp_comm: bool | None = Field(default=None, description="tensor parallelism's collectives through user buffers")
    moe_overlap: bool | None = None
    grad_reduce: bool | None = None
    param_gather: bool | None = None
    cp_comm: Literal["p2p", "a2a", "all_gather"] | None = None
    cuda_graphs: str | None = Field(default=None, description="none, full_iteration, or what is replayed")
    gradients: Literal["bf16", "fp32"] | None = Field(default=None, description="type in which they are reduced")
    fp8_param_gather: bool | None = None
    fused_loss: bool | None = Field(default=None, description="Transformer Engine's kernel")
    expert_capacity: float | None = Field(default=None, description="tokens of a rank's experts, over the mean")
    paged_stash: bool | None = None
    fp8_attention: bool | None = Field(default=None, description="no option of Megatron-LM's sets it")
    fsdp: str | None = Field(default=None, description="who shards the parameters")
    offload: str | None = None
    manual_gc: PositiveInt | None = Field(default=None, description="steps between two garbage collections")
    own: str | None = Field(default=None, description="ways of its framework that have no price here: ascend-coc")


# Offload of whole layers' activations (--cpu-offloading-num-layers), of states that come back for their update, and
# MindSpeed's.
_UNPRICED = ("activation_layers", "optimizer_states", "swap_optimizer", "swap_attention")


class Recipe(Strict):
    """One published layout. framework: who runs it; entry: its place in the source."""

    id: str = Field(min_length=1)
    source: str
    framework: str
    entry: str
    kind: Literal["performance", "training"]
    job: RecipeJob
    layout: Layout
    options: RecipeOptions = RecipeOptions()

    @property
    def dp(self) -> int:
        """Return the number of data-parallel ranks: GPUs / (tp x pp x cp)."""
        layout = self.layout
        return self.job.gpus // (layout.tp * layout.pp * layout.cp)

    @property
    def graphs(self) -> str | None:
        """Return the scope of CUDA graphs as plans name it: none, all, "full iteration", "outside experts", router.

        Graphs without modules, or of attention and MLP, are `all` without expert parallelism; the router is "outside
        experts" together with attention. None if the recipe does not state it, or states a scope that plans lack.
        """
        stated = self.options.cuda_graphs
        if stated is None or stated == "none":
            return stated
        modules = set(stated.split(", "))
        if "full_iteration" in modules:
            return "full iteration"
        if "on" in modules or modules >= {"attn", "mlp"}:
            return None if self.layout.ep > 1 else "all"
        if "moe_router" not in modules:
            return None
        return "outside experts" if "attn" in modules else "router"

    @property
    def optimizer_offload(self) -> float:
        """Return the share of the optimizer's states that is offloaded to host memory and updated there: 1.0 or 0.0."""
        return float((self.options.offload or "").startswith("optimizer True"))

    @property
    def activation_offload(self) -> bool:
        """Return whether modules' activations are offloaded to host memory."""
        return "modules" in (self.options.offload or "")

    def as_pins(self) -> dict[str, str]:
        """Return {pin: value as text} of the recipe: degrees, micro-batch size, sp (only with tp), ZeRO stage,
        recompute, layout and options, each if stated and pinnable; see `without_pin` for the rest. "full:block:LAYERS"
        becomes "full".
        """
        layout, pins = self.layout, {name: str(value) for name, value in self.layout.degrees.items()}
        if layout.micro is not None:
            pins["mbs"] = str(layout.micro)
        if layout.sp is not None and layout.tp > 1:
            pins["sp"] = str(layout.sp).lower()
        if layout.zero is not None:
            pins["zero"] = str(layout.zero)
        if layout.recompute is not None:
            pins["recompute"] = layout.recompute if layout.recompute.startswith("selective") else layout.recompute[:4]
        if layout.stages is not None and layout.stages != ENDS_AS_LAYERS:
            pins["layout"] = layout.stages
        return pins | dict(self._option_pins().values())

    def _option_pins(self) -> dict[str, tuple[str, str]]:
        """Return {option: (pin, value as text)} of the stated options that have a pin with this layout and precision:
        cp_comm only with cp, options of experts only with ep, tp_comm only with tp, fp8_param_gather only in fp8 or
        mxfp8; all_gather and allgather have none.
        """
        layout, options, experts = self.layout, self.options, self.layout.ep > 1
        capacity, low = options.expert_capacity, self.job.precision in ("fp8", "mxfp8")
        rows: tuple[tuple[str, str, bool, bool | str | None], ...] = (
            ("cp_comm", "cp_comm", layout.cp > 1 and options.cp_comm != "all_gather", options.cp_comm),
            ("offload", "optimizer_offload", self.optimizer_offload > 0, "1"),
            ("gradients", "grad_dtype", True, options.gradients),
            ("cuda_graphs", "cuda_graphs", True, self.graphs),
            ("moe_overlap", "moe_overlap", experts, options.moe_overlap),
            ("expert_capacity", "expert_capacity", experts, None if capacity is None else f"{capacity:g}"),
            ("paged_stash", "paged_stash", experts, options.paged_stash),
            ("dispatcher", "dispatcher", experts and options.dispatcher != "allgather", options.dispatcher),
            ("tp_comm", "user_buffers", layout.tp > 1, options.tp_comm),
            ("fp8_param_gather", "fp8_param_gather", low, options.fp8_param_gather),
        )
        stated = ((option, pin, value) for option, pin, applies, value in rows if applies and value is not None)
        return {option: (pin, str(value).lower().replace(" ", "_")) for option, pin, value in stated}

    def without_pin(self) -> tuple[str, ...]:
        """Return, each as words with a value ("param gather on"), what the recipe states and `as_pins` cannot express:
        options without a pin, offload of more than the optimizer, full recomputation of some layers, and stages that
        count the embedding and the loss as layers.
        """
        layout, pinned = self.layout, {*self._option_pins()}
        if self.options.cp_comm != "all_gather":
            pinned.add("cp_comm")  # without cp it has no effect
        offloads = (self.options.offload or "").split(", ")
        if self.activation_offload or any(one.startswith(_UNPRICED) for one in offloads):
            pinned.discard("offload")
        words = [
            f"{name.replace('_', ' ')} {spelled(value)}"
            for name, value in self.options
            if value is not None and name not in pinned
        ]
        if (layout.recompute or "").startswith("full:"):
            words.append(f"recompute {layout.recompute}")
        if layout.stages == ENDS_AS_LAYERS:
            words.append("stages with the embedding and the loss in a layer's place")
        return tuple(words)


class RecipeFile(Strict):
    """The recipes of one model of the zoo."""

    schema_: Literal["symconfig.recipes/2"] = Field(alias="schema")
    model: str
    sources: dict[str, RecipeSource]
    recipes: tuple[Recipe, ...]


def recipe_models() -> list[str]:
    """Return the sorted names of the zoo models that have recipes."""
    return sorted(path.stem for path in (data_dir("model_zoo") / "recipes").glob("*.yaml"))


@cache
def load_recipes(model: str) -> RecipeFile:
    """Return the recipes of a zoo model, cached.

    Raises InputError if the model has no such file, for invalid files, and with a problem for each recipe whose
    `source` is none of the file's.
    """
    document = load_yaml_strict(data_dir("model_zoo") / "recipes" / f"{model}.yaml")
    recipes = validate(document, RecipeFile)
    need = "one of " + ", ".join(recipes.sources)
    wrong = [
        document.problem("no such source", ("recipes", index, "source"), got=recipe.source, need=need)
        for index, recipe in enumerate(recipes.recipes)
        if recipe.source not in recipes.sources
    ]
    if wrong:
        raise InputError(wrong)
    return recipes


def every_recipe() -> Iterator[tuple[RecipeFile, Recipe]]:
    """Yield (file, recipe) of every recipe of all models."""
    for model in recipe_models():
        file = load_recipes(model)
        yield from ((file, recipe) for recipe in file.recipes)


def find_recipe(name: str) -> tuple[RecipeFile, Recipe]:
    """Return (file of its model, recipe) for a recipe's id, in upper or lower case. Raises InputError for an unknown
    id, with the nearest as hint.
    """
    known = {recipe.id: (file, recipe) for file, recipe in every_recipe()}
    if (own := called(name, known)) is not None:
        return known[own]
    need = "a name of `symconfig list recipes`"
    raise InputError("unknown recipe", field="recipe", got=name, need=need, hint=nearest(name, known))
