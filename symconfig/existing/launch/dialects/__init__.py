"""Formats that do not speak in Megatron-LM's options: their keys, and the options that say the same."""
