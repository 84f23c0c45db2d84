"""Generation: bytes against published sizes, time against a count of every token, and the roofline's two ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.tuning import Lengths
from symconfig.runs.rl.engine import (
    ASLEEP_BYTES,
    LAYER_S,
    STEP_S,
    WORKING_BYTES,
    Replica,
    _mixed,
    cached_bytes,
    generation_s,
)
from symconfig.solve.lengths import GROUPS, packing, quantiles
from tests.runs.rl.support import engine, step

ONE = np.array([1.0])


# 2 x layers x heads of keys x channels x 2 bytes, of each model's config.json; of DeepSeek-V3 61 layers of 512 + 64
# numbers (arXiv:2412.19437, section 2.1.1).
@pytest.mark.parametrize(
    ("model", "tp", "bytes_per_token"),
    [
        ("llama3.1-8b", 1, 2 * 32 * 8 * 128 * 2),
        ("llama3.1-8b", 8, 2 * 32 * 1 * 128 * 2),
        ("llama3.1-8b", 16, 2 * 32 * 1 * 128 * 2),  # a head is on two GPUs
        ("qwen3-30b-a3b", 1, 2 * 48 * 4 * 128 * 2),
        ("deepseek-v3", 8, 61 * (512 + 64) * 2),
    ],
)
def test_keys_and_values_take_the_published_bytes(model: str, tp: int, bytes_per_token: int) -> None:
    assert cached_bytes(engine(model).model, tp, ONE)[0] == bytes_per_token


def test_a_window_bounds_what_is_kept() -> None:
    gemma = engine("gemma3-27b").model
    short, long = (cached_bytes(gemma, 1, np.array([float(tokens)]))[0] for tokens in (gemma.sliding_window, 32_768))
    whole = sum(not window for window in gemma.sliding_layers)
    per_token = 2 * gemma.num_key_value_heads * gemma.head_dim * 2
    assert long - short == whole * per_token * (32_768 - gemma.sliding_window)


def test_a_static_share_is_of_weights_and_keys_alone() -> None:
    """SGLang: (weights + keys) / what is free before them; vLLM: all that it takes / the GPU."""
    one, share = engine(), 0.6
    memory = one.machine.memory_bytes
    whole, static = (Replica(one, share, each) for each in (False, True))
    assert whole.bytes == share * memory
    assert static.context_bytes + one.weights_bytes == pytest.approx(share * (memory - ASLEEP_BYTES))
    assert static.bytes - static.context_bytes == pytest.approx(whole.bytes - whole.context_bytes)


def test_one_sequence_waits_for_the_weights_and_many_for_the_products() -> None:
    """Of llama3.1-8b (config.json): 8.03B parameters, of which the embedding of 128,256 x 4,096 is looked up in."""
    one = engine()
    weights = 8_030_261_248 - 128_256 * 4_096
    begun = 33 * LAYER_S  # 32 layers, and what is outside of them
    read = 2 * weights / one.machine.copy_bytes_per_s
    assert one.decode_s(ONE, ONE)[0] == pytest.approx(read + begun + STEP_S, rel=2e-3)
    # Of a token: two norms over the stream and what is added, queries, keys and values turned or kept, the MLP's gate;
    # of its logits 46 bytes.
    many = 8192
    moved = 2 * 32 * (8 * 4096 + 2 * (32 + 2 * 8) * 128 + 3 * 14_336) + 46 * 128_256
    computed = 2 * weights * many / (one.machine.high_peak_flops * one.machine.efficiency)
    expected = computed + many * moved / one.machine.hbm_bytes_per_s + begun + STEP_S
    assert one.decode_s(np.array([float(many)]), ONE)[0] == pytest.approx(expected, rel=0.01)


def test_few_sequences_touch_few_experts() -> None:
    experts = engine("qwen3-30b-a3b")
    embedding = 151_936 * 2_048
    one = (experts.decode_s(ONE, ONE)[0] - STEP_S - 49 * LAYER_S) * experts.machine.copy_bytes_per_s
    assert one == pytest.approx(2 * (experts._count.active - embedding), rel=0.02)
    several = np.array([128.0])
    rest = experts.sampling_s(several)[0] + 48 * LAYER_S + STEP_S
    many = (experts.decode_s(several, ONE)[0] - rest) * experts.machine.copy_bytes_per_s
    assert many == pytest.approx(experts.weights_bytes - 2 * embedding, rel=0.05)


def test_a_prompt_attends_to_half_of_itself() -> None:
    """Of llama3.1-8b: 2 products x 2 FLOP x 32 heads x 128 channels of each pair of tokens, in 32 layers."""
    one, tokens = engine(), 65_536.0
    short, long = (one.prefill_s(tokens, length) for length in (1.0, 8192.0))
    words = one._words_s(np.array([8192.0])) - one._words_s(ONE)
    scored = tokens * (8192 - 1) / 2 * 4 * 32 * 128 * 32 / one.machine.attention_flops
    assert long - short == pytest.approx(scored - 8 * words[0], rel=1e-3)


@pytest.mark.parametrize(
    ("at_most", "algorithm", "greedy"), [(1, "grpo", 0), (7, "remax", 1), (64, "grpo", 0), (1024, "remax", 1)]
)
def test_generation_takes_what_a_count_of_every_token_takes(at_most: int, algorithm: str, greedy: int) -> None:
    rl = step(algorithm=algorithm, rollout={"max_num_seqs": at_most})
    one, replicas = engine(), 4
    found = generation_s(Replica(one, 0.6), rl, replicas)
    own = rl.prompts * (rl.samples + greedy) // replicas
    drawn = np.rint(quantiles(rl.response_length, min(own, 16 * GROUPS)))
    waiting = [int(drawn[index]) for index in _mixed(drawn.size, own)]
    running: list[list[float]] = []
    seconds = 0.0
    while waiting or running:
        while waiting and len(running) < at_most:
            running.append([waiting.pop(0), rl.prompt_length.mean])
        context = sum(tokens for _, tokens in running) / len(running) + 0.5
        seconds += one.decode_s(np.array([float(len(running))]), np.array([context]))[0]
        running = [[left - 1, tokens + 1] for left, tokens in running if left > 1]
    prefill_s = one.prefill_s(rl.prompts / replicas * rl.prompt_length.mean, rl.prompt_length.mean)
    assert found - prefill_s == pytest.approx(seconds, rel=1e-6)


def test_an_engine_without_room_for_the_longest_sequence_generates_nothing() -> None:
    one, rl = engine("llama3.1-70b", tp=2), step()
    share = (one.weights_bytes + WORKING_BYTES) / one.machine.memory_bytes
    assert generation_s(Replica(one, share), rl, 1) is None
    assert generation_s(Replica(one, share + 0.05), rl, 1) is not None


def test_a_stated_rate_is_taken() -> None:
    rl = step(rollout={"tokens_per_s_per_gpu": 1000.0})
    found = generation_s(Replica(engine(tp=2), 0.6), rl, 2)
    assert found == pytest.approx(rl.sequences * 300.0 / 4000.0)


def test_ranks_of_data_have_attention_and_keys_of_their_own_and_share_experts() -> None:
    """By the published sizes: 256 experts of 3 x 7168 x 2048 in 58 layers of DeepSeek-V3, 671B parameters in all; the
    latent keys of a token are whole on every GPU of a rank of data."""
    experts = 58 * 256 * 3 * 7168 * 2048
    apart, together = engine("deepseek-v3", tp=1, dp=16), engine("deepseek-v3", tp=16)
    whole = together.weights_bytes * 16 / 2
    assert whole == pytest.approx(671e9, rel=2e-3)
    assert apart.weights_bytes / 2 == pytest.approx(whole - experts + experts / 16)
    rl = step()
    shares = [(each.weights_bytes + WORKING_BYTES) / each.machine.memory_bytes + 0.02 for each in (apart, together)]
    rooms = [Replica(each, share).at_once(rl) for each, share in zip((apart, together), shares, strict=True)]
    assert rooms[0] == pytest.approx(16 * rooms[1], rel=0.1)  # each rank holds the keys of other sequences


def test_a_replica_of_one_rank_of_data_reduces_twice_in_each_layer() -> None:
    one, many = engine("qwen3-30b-a3b", tp=4), engine("qwen3-30b-a3b", tp=4, dp=2)
    tokens = np.array([4096.0])
    assert (one.gpus, many.gpus) == (4, 8)
    behind_attention = one._reductions_s(tokens / 2) / 2
    assert many._reductions_s(tokens) > behind_attention
    assert many._reductions_s(tokens) < one._reductions_s(tokens) * 1.5


@given(mean=st.floats(20, 4000), over=st.floats(1.2, 4.0), cut=st.floats(1.0, 3.0))
def test_the_mean_is_the_stated_one_and_nothing_is_longer_than_the_cut(mean: float, over: float, cut: float) -> None:
    longest = int(mean * over * cut) + 1
    found = quantiles(Lengths(mean=mean, p95=min(mean * over, longest), max=longest))
    assert found.mean() == pytest.approx(mean, rel=0.02)
    assert found.max() <= longest
    assert (np.diff(found) >= -1e-9).all()


def test_a_lognormal_distribution_is_found_again() -> None:
    """Against draws of one, whose mean and percentile are taken as stated."""
    drawn = np.random.default_rng(1).lognormal(mean=6.0, sigma=0.7, size=400_000)
    found = quantiles(Lengths(mean=drawn.mean(), p95=float(np.quantile(drawn, 0.95)), max=10**6), 256)
    for share in (0.1, 0.5, 0.9, 0.95):
        assert np.quantile(found, share) == pytest.approx(np.quantile(drawn, share), rel=0.03)


def test_the_documents_of_a_micro_batch_are_prompts_with_their_responses() -> None:
    rl = step()
    lengths = packing(rl).lengths
    assert sum(lengths) / len(lengths) == pytest.approx(rl.mean_tokens, rel=0.02)
    assert max(lengths) <= rl.longest


def test_equal_lengths_are_equal() -> None:
    assert quantiles(Lengths(mean=512.0, p95=None, max=512)) == pytest.approx(512)
