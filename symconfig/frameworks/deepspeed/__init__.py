"""DeepSpeed and what starts it."""
