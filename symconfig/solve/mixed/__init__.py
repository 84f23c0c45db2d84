"""Pipelines over two kinds of GPUs: every stage lies on one kind, and each kind hosts a run of stages."""
