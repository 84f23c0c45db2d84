"""A partition of a PyTorch module as a Python file that runs it: one rank's part of every operator, and what moves."""
