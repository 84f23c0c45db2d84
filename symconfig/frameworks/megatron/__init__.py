"""Megatron-LM and what is built on it."""
