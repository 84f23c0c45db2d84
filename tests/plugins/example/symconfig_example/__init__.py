"""Adds a target, a launcher, a rule and a model to symconfig."""
