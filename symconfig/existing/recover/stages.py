"""How options say the pipeline's stages: equal ones, the ends as layers, other counts at the ends, or a layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.recover.mixers import letters, spelled
from symconfig.frameworks.megatron import hybrid
from symconfig.frameworks.megatron.flags import Value
from symconfig.plans import pipeline_layout


@dataclass(frozen=True, slots=True)
class StatedStages:
    """vpp: chunks of each stage; None: the options say a number that does not divide."""

    vpp: int | None
    layout: str | None = None
    ends_as_layers: tuple[int, int] = (0, 0)
    first_layers: int | None = None
    last_layers: int | None = None


def stages(names: Mapping[str, Value], layers: int, pp: int, model: ModelDescriptor | None = None) -> StatedStages:
    """Recover the stages of a Megatron-LM that has `layers` layers on `pp` stages. model: whose they are, once it is
    known.
    """
    if (text := spelled(names)) and hybrid.STAGE in text:
        return _of_pattern(text, pp, model)
    layout = names.get("pipeline_model_parallel_layout")
    if isinstance(layout, str) and layout:
        chunks = len(pipeline_layout.expanded(layout))
        return StatedStages(chunks // pp if chunks % pp == 0 else None, layout)
    ends = (
        int(bool(names.get("account_for_embedding_in_pipeline_split"))),
        int(bool(names.get("account_for_loss_in_pipeline_split"))),
    )
    first, last = _whole(names, "decoder_first_pipeline_num_layers"), _whole(names, "decoder_last_pipeline_num_layers")
    if pp == 1:
        return StatedStages(1)
    return StatedStages(_chunks(names, layers + sum(ends), pp), None, ends, first, last)


def _of_pattern(text: str, pp: int, model: ModelDescriptor | None) -> StatedStages:
    """Recover the stages of a HybridModel, whose pattern says them."""
    try:
        pattern = letters(text, model)
    except ValueError:
        return StatedStages(1)  # the model's fields are refused for it
    chunks = ["t" * len(stage) for stage in pattern.stages]
    chunks[0], chunks[-1] = "E" + chunks[0], chunks[-1] + "m" * pattern.predictions + "L"
    return StatedStages(len(chunks) // pp if len(chunks) % pp == 0 else None, pipeline_layout.compact(chunks))


def dealt(pipeline: StatedStages, layers: int, pp: int) -> bool:
    """Tell whether every chunk gets its layers as Megatron-LM deals them out."""
    if pipeline.layout is not None:
        return True
    at_start, at_end = map(bool, pipeline.ends_as_layers)
    return (
        pipeline_layout.dealt(
            layers,
            pp,
            pipeline.vpp or 1,
            first=pipeline.first_layers,
            last=pipeline.last_layers,
            embedding=at_start,
            loss=at_end,
        )
        is not None
    )


def _chunks(names: Mapping[str, Value], places: int, pp: int) -> int | None:
    """Return the number of chunks, or the layers of each: Megatron-LM's arguments.py, validate_args."""
    chunks = _whole(names, "num_virtual_stages_per_pipeline_rank")
    if chunks is not None:
        return chunks
    each = _whole(names, "num_layers_per_virtual_pipeline_stage")
    if each is None:
        return 1
    return places // pp // each if places % pp == 0 and places // pp % each == 0 else None


def _whole(names: Mapping[str, Value], dest: str) -> int | None:
    value = names.get(dest)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
