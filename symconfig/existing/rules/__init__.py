"""What is wrong with a configuration, as rules with names, examples and reasons."""
