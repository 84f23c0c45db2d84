"""Kernels of flash-attn in Triton."""
