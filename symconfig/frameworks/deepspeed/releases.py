"""The DeepSpeed release that files are made for, what it trains right, and what goes with it."""

from __future__ import annotations

# The release that the rendered files are made for and checked against.
DEEPSPEED_RELEASE = "0.19.8"
# AutoEP's presets (deepspeed/module_inject/auto_ep_presets), each named like its model_type, whose training on CPU
# ranks gives the loss of plain data parallelism, with Transformers 5.23.
AUTOEP_MODELS = frozenset(("mixtral", "qwen3_moe", "deepseek_v3"))
# Architectures whose training with AutoTP gives the loss of one rank. Of the others AutoTP refuses the tensor-parallel
# plan that Transformers brings (experts), or splits nothing (gpt_oss), or finds no linear layers (gpt2).
AUTOTP_MODELS = frozenset(("llama", "mistral", "qwen", "qwen2", "qwen3"))

# Versions that the checks of this repository run with. DeepSpeed's keys change between releases: pinned exactly.
REQUIREMENTS = {
    "torch": "torch>=2.6",
    "deepspeed": f"deepspeed=={DEEPSPEED_RELEASE}",
    "transformers": "transformers>=5,<6",
    "accelerate": "accelerate>=1.0  # transformers asks for it beside DeepSpeed",
}
ADAPTER_REQUIREMENTS = {"peft": "peft>=0.17,<1"}
QLORA_REQUIREMENTS = {"bitsandbytes": "bitsandbytes>=0.43"}
