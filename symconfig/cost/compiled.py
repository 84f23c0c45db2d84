"""Made by `python -m symconfig.cost.compile` from formulas.py. Do not edit.

Arguments are float64 arrays, numbers or terms of a tape that broadcast together.
"""

from typing import Any

import numpy as np

from symconfig.cost.either import greater, maximum, minimum


def matmul_s(batch: Any, m: Any, n: Any, k: Any, peak_flops: Any, efficiency: Any, k_half: Any, compute_units: Any, hbm_bytes_per_s: Any, element_bytes: Any, cast_bytes: Any, launch_s: Any) -> Any:
    """Return seconds: roofline with tile and wave quantisation; K/(K + K_half) for prologue and epilogue; casts before the product."""
    x0 = k*m
    x1 = batch/hbm_bytes_per_s
    x2 = np.ceil((1.0/256.0)*m)
    x3 = np.ceil((1.0/128.0)*n)
    x4 = compute_units/batch
    x5 = x4/x3
    x6 = np.floor((1.0/1024.0)*k)
    x7 = maximum(1, minimum(np.floor(1.0e-9 + x5/x2), x6))
    x8 = batch/compute_units
    x9 = x3*x8
    x10 = n*x0
    x11 = x10*x8
    x12 = 3.0517578125e-5*x11/(k + 1.0*k_half)
    x13 = np.ceil((1.0/128.0)*m)
    x14 = x13**(-1.0)
    x15 = np.ceil((1.0/256.0)*n)
    x16 = x4/x15
    x17 = maximum(1, minimum(np.floor(x14*x16 + 1.0e-9), x6))
    x18 = x15*x8
    x19 = maximum(1, minimum(np.floor(x14*x5 + 1.0e-9), x6))
    x20 = x11/(k + 0.5*k_half)
    x21 = np.ceil((1.0/64.0)*m)
    x22 = x21**(-1.0)
    x23 = maximum(1, minimum(np.floor(x16*x22 + 1.0e-9), x6))
    x24 = np.ceil((1.0/64.0)*n)
    x25 = x4/x24
    x26 = maximum(1, minimum(np.floor(x14*x25 + 1.0e-9), x6))
    x27 = x24*x8
    x28 = maximum(1, minimum(np.floor(x22*x25 + 1.0e-9), x6))
    return cast_bytes*x0*x1 + launch_s + maximum(2*batch*x10/(efficiency*peak_flops*maximum(maximum(maximum(maximum(maximum(x12*x7/np.ceil(x2*x7*x9 - 1.0e-9), x12*x17/np.ceil(x13*x17*x18 - 1.0e-9)), 5.67626953125e-5*x19*x20/np.ceil(x13*x19*x9 - 1.0e-9)), 5.31005859375e-5*x20*x23/np.ceil(x18*x21*x23 - 1.0e-9)), 9.1552734375e-5*x11*x26/((k + 0.25*k_half)*np.ceil(x13*x26*x27 - 1.0e-9))), 0.000146484375*x11*x28/((k + 0.125*k_half)*np.ceil(x21*x27*x28 - 1.0e-9)))), element_bytes*x1*(k*n + m*n + x0))


def attention_s(queries: Any, keys: Any, channels: Any, passes: Any, attention_flops: Any, launch_s: Any) -> Any:
    """Return seconds: FlashAttention (arXiv 2205.14135): two products forward, five backward; keys counts attended ones only."""
    return launch_s + 2*channels*keys*passes*queries/attention_flops


def traffic_s(moved_bytes: Any, hbm_bytes_per_s: Any, launch_s: Any) -> Any:
    """Return seconds: memory-bound kernel."""
    return launch_s + moved_bytes/hbm_bytes_per_s


def ring_s(amount_bytes: Any, passes: Any, ranks: Any, stride: Any, level0_size: Any, level0_bytes_per_s: Any, level0_latency_s: Any, level0_mesh: Any, level1_size: Any, level1_bytes_per_s: Any, level1_latency_s: Any, level1_mesh: Any, level2_size: Any, level2_bytes_per_s: Any, level2_latency_s: Any, level2_mesh: Any, level3_size: Any, level3_bytes_per_s: Any, level3_latency_s: Any, level3_mesh: Any) -> Any:
    """Return seconds: ring over a hierarchy: all-gather and reduce-scatter pass once, all-reduce twice; slowest level binds; a latency at each step."""
    x0 = stride**(-1.0)
    x1 = minimum(ranks, maximum(1, np.floor(level0_size*x0)))
    x2 = x1**(-1.0)
    x3 = -ranks*x2
    x4 = minimum(ranks, maximum(1, np.floor(level1_size*x0)))
    x5 = x4**(-1.0)
    x6 = ranks*x5
    x7 = minimum(ranks, maximum(1, np.floor(level2_size*x0)))
    x8 = x7**(-1.0)
    x9 = ranks*x8
    x10 = minimum(ranks, maximum(1, np.floor(level3_size*x0)))
    x11 = level0_latency_s*(ranks + x3) + level1_latency_s*(-x3 - x6) + level2_latency_s*(x6 - x9) + level3_latency_s*(-ranks/x10 + x9)
    x12 = np.log(2)**(-1.0)
    return passes*(x11*(2 - passes) + (passes - 1)*minimum(x11, level0_latency_s*(x1 - 1) + level1_latency_s*x12*np.log(x2*x4) + level2_latency_s*x12*np.log(x5*x7) + level3_latency_s*x12*np.log(x10*x8)) + (ranks - 1)*maximum(maximum(maximum(amount_bytes*greater(x1, 1)/(level0_bytes_per_s*(-level0_mesh + level0_mesh*(maximum(x1, 2) - 1)/(level0_size - 1) + 1)), amount_bytes*x2*greater(x4, x1)/(level1_bytes_per_s*(-level1_mesh + level1_mesh*(maximum(x4, 2) - 1)/(level1_size - 1) + 1))), amount_bytes*x5*greater(x7, x4)/(level2_bytes_per_s*(-level2_mesh + level2_mesh*(maximum(x7, 2) - 1)/(level2_size - 1) + 1))), amount_bytes*x8*greater(x10, x7)/(level3_bytes_per_s*(-level3_mesh + level3_mesh*(maximum(x10, 2) - 1)/(level3_size - 1) + 1)))/ranks)


def all_to_all_s(amount_bytes: Any, ranks: Any, stride: Any, copies: Any, once: Any, groups: Any, chosen_groups: Any, level0_size: Any, level0_bytes_per_s: Any, level0_latency_s: Any, level0_mesh: Any, level1_size: Any, level1_bytes_per_s: Any, level1_latency_s: Any, level1_mesh: Any, level2_size: Any, level2_bytes_per_s: Any, level2_latency_s: Any, level2_mesh: Any, level3_size: Any, level3_bytes_per_s: Any, level3_latency_s: Any, level3_mesh: Any) -> Any:
    """Return seconds: each rank sends an equal part to every other; levels work at the same time. once: copies of a token for one rank or domain travel once (DeepEP, HybridEP)."""
    x0 = stride**(-1.0)
    x1 = minimum(ranks, maximum(1, np.floor(level0_size*x0)))
    x2 = minimum(ranks, maximum(1, np.floor(level1_size*x0)))
    x3 = minimum(ranks, maximum(1, np.floor(level2_size*x0)))
    x4 = minimum(ranks, maximum(1, np.floor(level3_size*x0)))
    x5 = ranks**(-1.0)
    x6 = x5*(x1 - 1)
    x7 = copies**(-1.0)
    x8 = x1**(-1.0)
    x9 = maximum(-chosen_groups/groups + 1, 0)
    x10 = groups*x5
    x11 = -x1 + x2
    x12 = x11*x5
    x13 = minimum(1 - (-x1*x5 + 1)**copies, 1 - x9**maximum(x1*x10, 1))
    x14 = -x2 + x3
    x15 = x14*x5
    x16 = -x3 + x4
    x17 = x16*x5
    return level0_latency_s*greater(x1, 1) + level1_latency_s*greater(x2, x1) + level2_latency_s*greater(x3, x2) + level3_latency_s*greater(x4, x3) + maximum(maximum(maximum(amount_bytes*(once*(-x6 + x7*(-ranks*x8 + ranks)*minimum(1 - (1 - x5)**copies, 1 - x9**maximum(x10, 1))) + x6)/(level0_bytes_per_s*(-level0_mesh + level0_mesh*(maximum(x1, 2) - 1)/(level0_size - 1) + 1)), amount_bytes*(once*(x11*x13*x7*x8 - x12) + x12)/(level1_bytes_per_s*(-level1_mesh + level1_mesh*(maximum(x2, 2) - 1)/(level1_size - 1) + 1))), amount_bytes*(once*(x13*x14*x7*x8 - x15) + x15)/(level2_bytes_per_s*(-level2_mesh + level2_mesh*(maximum(x3, 2) - 1)/(level2_size - 1) + 1))), amount_bytes*(once*(x13*x16*x7*x8 - x17) + x17)/(level3_bytes_per_s*(-level3_mesh + level3_mesh*(maximum(x4, 2) - 1)/(level3_size - 1) + 1)))


def send_s(amount_bytes: Any, ranks: Any, stride: Any, level0_size: Any, level0_bytes_per_s: Any, level0_latency_s: Any, level0_mesh: Any, level1_size: Any, level1_bytes_per_s: Any, level1_latency_s: Any, level1_mesh: Any, level2_size: Any, level2_bytes_per_s: Any, level2_latency_s: Any, level2_mesh: Any, level3_size: Any, level3_bytes_per_s: Any, level3_latency_s: Any, level3_mesh: Any) -> Any:
    """Return seconds: one message to the neighbour; the slowest pair of the group binds."""
    x0 = stride**(-1.0)
    x1 = minimum(ranks, maximum(1, np.floor(level0_size*x0)))
    x2 = minimum(ranks, maximum(1, np.floor(level1_size*x0)))
    x3 = minimum(ranks, maximum(1, np.floor(level2_size*x0)))
    x4 = minimum(ranks, maximum(1, np.floor(level3_size*x0)))
    return maximum(maximum(maximum((amount_bytes/(level0_bytes_per_s*(-level0_mesh + level0_mesh*(maximum(x1, 2) - 1)/(level0_size - 1) + 1)) + level0_latency_s)*greater(x1, 1), (amount_bytes/(level1_bytes_per_s*(-level1_mesh + level1_mesh*(maximum(x2, 2) - 1)/(level1_size - 1) + 1)) + level1_latency_s)*greater(x2, x1)), (amount_bytes/(level2_bytes_per_s*(-level2_mesh + level2_mesh*(maximum(x3, 2) - 1)/(level2_size - 1) + 1)) + level2_latency_s)*greater(x3, x2)), (amount_bytes/(level3_bytes_per_s*(-level3_mesh + level3_mesh*(maximum(x4, 2) - 1)/(level3_size - 1) + 1)) + level3_latency_s)*greater(x4, x3))


def exposed_s(communication_s: Any, beside_s: Any, hide: Any) -> Any:
    """Return seconds: what is left of a collective beside the work that it runs with."""
    return maximum(-beside_s*hide + communication_s, 0)


def chunked_s(communication_s: Any, beside_s: Any, hide: Any, edge: Any) -> Any:
    """Return seconds: what is left of a collective cut into pieces beside the product cut likewise: nothing hides the edge piece."""
    return maximum(-beside_s*hide + communication_s, communication_s*edge)


def slowed_s(communication_s: Any, beside_s: Any, hide: Any, contention: Any) -> Any:
    """Return seconds: what the work beside a collective loses to it, compute units and memory bandwidth; work that takes longer hides more."""
    return contention*minimum(communication_s, beside_s*hide/maximum(-contention*hide + 1, 1.0e-9))


def pipeline_s(num_microbatches: Any, slowest_s: Any, total_s: Any, vpp: Any) -> Any:
    """Return seconds: 1F1B and interleaved 1F1B (arXiv 2104.04473): the bubble is the other stages' pass over vpp."""
    return num_microbatches*slowest_s + (-slowest_s + total_s)/vpp


def alone_s(hidden_s: Any, num_microbatches: Any, vpp: Any, group: Any) -> Any:
    """Return seconds: what other microbatches hide shows of a stage's first forward and last backward passes: the warm-up of the last stage and one chunk more (Megatron-LM, get_pp_rank_microbatches, overlap_moe_expert_parallel_comm)."""
    return hidden_s*minimum(num_microbatches, (group*(vpp - 1) + 1)/vpp)


def in_flight(stage: Any, pp: Any, vpp: Any, num_microbatches: Any, group: Any) -> Any:
    """Return microbatches: Megatron's warm-up: pp - stage for 1F1B; 2(pp - stage - 1) + (vpp - 1)group + 1 chunks interleaved."""
    x0 = greater(vpp, 1)
    return (1 - x0)*minimum(num_microbatches, pp - stage) + x0*minimum(num_microbatches*vpp, group*(vpp - 1) + 2*pp - 2*stage - 1)/vpp


def states_bytes(dense_parameters: Any, expert_parameters: Any, weight_bytes: Any, gradient_bytes: Any, optimizer_bytes: Any, dense_shards: Any, expert_shards: Any, zero1: Any, zero2: Any, zero3: Any, optimizer_on_device: Any) -> Any:
    """Return bytes: ZeRO (arXiv 1910.02054, table 1) with the element sizes as parameters."""
    x0 = dense_shards - 1
    x1 = expert_shards - 1
    return gradient_bytes*(dense_parameters/(x0*zero2 + 1) + expert_parameters/(x1*zero2 + 1)) + optimizer_bytes*optimizer_on_device*(dense_parameters/(x0*zero1 + 1) + expert_parameters/(x1*zero1 + 1)) + weight_bytes*(dense_parameters/(x0*zero3 + 1) + expert_parameters/(x1*zero3 + 1))


def optimizer_s(parameters: Any, shards: Any, touched_bytes: Any, hbm_bytes_per_s: Any, launch_s: Any) -> Any:
    """Return seconds: memory-bound: master weight and both moments read and written, gradient read, weight written."""
    return launch_s + parameters*touched_bytes/(hbm_bytes_per_s*shards)


def dealt(whole: Any, ranks: Any, largest: Any, chunks: Any, bucket: Any) -> Any:
    """Return elements: pieces of each chunk dealt out whole, bucket by bucket, to whoever has least: of each bucket an even share in halves of the largest piece, or that piece."""
    x0 = chunks**(-1.0)
    x1 = np.floor(whole*x0/bucket)
    x2 = maximum(largest, 0.001)
    x3 = ranks**(-1.0)
    x4 = -bucket*x1 + whole*x0
    return chunks*(x1*maximum((1.0/2.0)*x2*np.ceil(2*bucket*x3/x2 - 1.0e-9), largest) + maximum(x3*x4, minimum(x4, largest)))
