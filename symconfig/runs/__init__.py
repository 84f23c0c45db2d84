"""What surrounds a run: replan/, checkpoint/, sweep/ and rl/."""
