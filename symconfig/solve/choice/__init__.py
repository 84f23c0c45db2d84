"""The choice among what a search has found: families, draws of what is uncertain, and simplicity."""
