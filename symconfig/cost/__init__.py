"""Seconds and bytes: closed forms in NumPy, applied to what the graph room derives."""
