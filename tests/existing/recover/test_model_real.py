"""What is read of options is what Megatron-LM's own parser, validators and configuration make of them."""

from __future__ import annotations

import pytest

from symconfig.existing.recover.model import described
from symconfig.frameworks.megatron.flags import resolve
from symconfig.verify import megatron_session
from symconfig.verify.megatron_sameness import compare
from symconfig.verify.megatron_session import Job
from tests.existing.recover.options import NEWEST, names_of
from tests.verify.megatron_support import LIMIT_S, source

SHAPE = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --bf16 --mock-data --vocab-size 50257 "
    "--tokenizer-type NullTokenizer --tensor-model-parallel-size 2 --transformer-impl transformer_engine"
)
LLAMA = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
MOE = f"{LLAMA} --num-experts 8 --moe-ffn-hidden-size 512 --sequence-parallel"
LATENT = f"{LLAMA} --multi-latent-attention --qk-layernorm --q-lora-rank 512 --kv-lora-rank 128 --no-rope-fusion"
YARN = LLAMA.replace("-type rope", "-type yarn") + " --rotary-scaling-factor 32"
CASES = (  # options that do not depend on each other share a case
    "",
    LLAMA,
    "--swiglu",
    "--swiglu --ffn-hidden-size 2816 --kv-channels 128 --num-query-groups 4 --untie-embeddings-and-output-weights",
    "--no-bias-gelu-fusion --norm-epsilon 1e-6 --apply-layernorm-1p --position-embedding-type none",
    "--disable-bias-linear --add-qkv-bias --group-query-attention --num-query-groups 4",
    "--use-rotary-position-embeddings --num-experts 0 --hidden-dropout 0 --attention-dropout 0.3",
    "--position-embedding-type rope --rotary-percent 0.25 --rotary-base 500000 --init-method-std 0.006",
    f"{LLAMA} --qk-layernorm --use-rope-scaling --rope-scaling-factor 8",
    f"{LLAMA} --rotary-seq-len-interpolation-factor 4 --mtp-num-layers 1",
    MOE,
    f"{LLAMA} --num-experts 4 --sequence-parallel --moe-router-topk 4 --moe-router-pre-softmax",
    f"{MOE} --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-topk 4 "
    "--moe-router-topk-scaling-factor 2.5 --moe-router-num-groups 4 --moe-router-group-topk 2",
    f"{MOE} --moe-router-score-function sigmoid --moe-router-topk 1 --moe-layer-freq ([0]*3+[1]*21)",
    f"{MOE} --moe-layer-freq ([0,1]*12) --ffn-hidden-size 3000 --moe-shared-expert-intermediate-size 256 "
    "--moe-aux-loss-coeff 0.01",
    f"{MOE} --moe-router-load-balancing-type none --moe-aux-loss-coeff 0.01",
    LATENT,
    f"{LATENT} --rotary-scaling-factor 40 --mscale 0.7",
    f"{LATENT} --rotary-scaling-factor 40 --rope-type rope --num-experts 8 --sequence-parallel "
    "--moe-layer-freq [0]+[1]*23",
    "--window-size (127,0) --window-attn-skip-freq 4 --softmax-type learnable",
    "--window-size 127,0 --window-attn-skip-freq ([1]*23+[0])",
    f"{YARN} --yarn-beta-fast 20",
    f"{YARN} --no-yarn-correction-range-round-to-int --yarn-original-max-position-embeddings 2048",
    LLAMA.replace("--swiglu", "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7"),
)


def test_megatron_resolves_the_same_model() -> None:
    megatron = source()
    if resolve(megatron.version) != NEWEST:
        pytest.skip(f"the options are those of {NEWEST}, and here is {megatron.version}")
    lists = {case: f"{SHAPE} {case}".split() for case in CASES}
    jobs = [Job(case, tuple(words), 2, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) for case, words in lists.items()]
    results = megatron_session.run(megatron, jobs, LIMIT_S)
    for case, words in lists.items():
        assert results[case].ok, (case, results[case].error)
        found = described(names_of(words), seq_length=2048).model
        assert not list(compare(found, results[case], "options")), case
