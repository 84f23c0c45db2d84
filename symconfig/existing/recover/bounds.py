"""Numbers that no run has: what is less than one, and shares of more than a whole."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.architectures.keys import words
from symconfig.existing.recover.namespace import Namespace

# Each of them divides something, or counts what there is at least one of.
SIZES = words(
    """
    tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size
    expert_tensor_parallel_size num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
    micro_batch_size global_batch_size seq_length kv_channels ffn_hidden_size make_vocab_size_divisible_by
    """
)
_POSITIVE = SIZES | words(
    """
    num_distributed_optimizer_instances microbatch_group_size_per_vp_stage decoder_first_pipeline_num_layers
    decoder_last_pipeline_num_layers encoder_seq_length recompute_num_layers moe_ffn_hidden_size
    """
)
_SHARES = ("optimizer_offload_fraction",)


def out_of_bounds(names: Namespace) -> Iterator[tuple[str, str]]:
    """Yield destination, and what is needed, of each number that is given and that no run has."""
    for dest in names.written:
        value = None if dest in names.dark else names[dest]
        if not isinstance(value, int | float):
            continue
        if dest in _POSITIVE and value < 1:
            yield dest, "1 or more"
        if dest in _SHARES and not 0 <= value <= 1:  # nan, too
            yield dest, "0 to 1"
