"""A person's own file with a plan's values in it, and nothing else changed."""
