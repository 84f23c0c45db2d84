"""A plan made again: what changed, why, what it would cost to stay, and how the run goes on."""
