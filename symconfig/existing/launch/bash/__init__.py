"""Bash scripts, read and never executed: an abstract interpreter over the syntax tree that keeps the bytes of words."""
