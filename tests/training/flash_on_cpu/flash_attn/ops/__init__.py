"""Kernels of flash-attn."""
