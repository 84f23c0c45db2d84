"""A plan inside a training script: what the process runs on is held against it, and it is handed to the framework.

`symconfig.megatron`, `symconfig.deepspeed` and `symconfig.transformers` are the doors to this room.
"""
