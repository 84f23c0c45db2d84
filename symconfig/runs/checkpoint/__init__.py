"""Checkpoints: what a folder holds, and whether a run of another plan can go on from it.

`loadable(old, new)` evaluates the rules of rules.yaml, each with its source; `read(folder)` looks into a folder without
unpickling anything.
"""
