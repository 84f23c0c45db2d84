"""Blocks that stand in the place of attention."""
