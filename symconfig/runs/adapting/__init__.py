"""Somebody's own files on their way to a plan: which of close plans it is, and what becomes of the old checkpoint."""
