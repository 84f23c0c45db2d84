"""What surrounds a run: replan/, checkpoint/, sweep/, whatif/ and rl/."""
