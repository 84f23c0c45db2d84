"""Sizes of tokenizers that Megatron-LM scripts name, where no zoo model has the same one.

Of what `len(tokenizer)` is, by the name on Hugging Face; a path counts by its last folder.
"""

from __future__ import annotations

# Megatron-LM's own types that stand for one vocabulary (megatron/training/tokenizer/tokenizer.py).
BY_TYPE: dict[str, int] = {
    "GPT2BPETokenizer": 50_257,  # vocab.json of openai-community/gpt2
    "Llama2Tokenizer": 32_000,  # tokenizer.model of meta-llama/Llama-2-7b
    "BertWordPieceLowerCase": 30_522,  # vocab.txt of google-bert/bert-base-uncased
    "BertWordPieceCase": 28_996,  # vocab.txt of google-bert/bert-base-cased
}

# Start of a name, lower case, without the owner -> size; the longest start that fits counts. tokenizer.json or
# config.json of the repository that is named beside it.
BY_NAME: dict[str, int] = {
    "gpt2": 50_257,  # openai-community/gpt2
    "gpt-neox-20b": 50_277,  # EleutherAI/gpt-neox-20b, tokenizer.json; its embedding is padded to 50,432
    "llama-2-": 32_000,  # meta-llama/Llama-2-7b-hf
    "llama2": 32_000,
    "meta-llama-3": 128_256,  # meta-llama/Meta-Llama-3-8B
    "llama-3": 128_256,  # meta-llama/Llama-3.1-8B
    "mistral-7b-v0.1": 32_000,  # mistralai/Mistral-7B-v0.1
    "mistral-7b-v0.3": 32_768,  # mistralai/Mistral-7B-v0.3
    "mixtral-8x7b": 32_000,  # mistralai/Mixtral-8x7B-v0.1
    "qwen2.5-": 151_665,  # Qwen/Qwen2.5-7B with its added tokens; config.json says 152,064 or 151,936
    "qwen3-": 151_669,  # Qwen/Qwen3-8B with its added tokens; config.json says 151,936
    "gemma-2": 256_000,  # google/gemma-2-9b
    "bloom": 250_680,  # bigscience/bloom, tokenizer.json; its embedding is padded to 250,880
}


def size_by_name(name: str) -> int | None:
    """Return the size by a tokenizer's name, in lower case and without its owner."""
    fitting = [start for start in BY_NAME if name.startswith(start)]
    return BY_NAME[max(fitting, key=len)] if fitting else None
