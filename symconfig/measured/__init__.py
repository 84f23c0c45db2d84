"""Measured runs: read, predicted, scored, and the machine fitted to them."""
