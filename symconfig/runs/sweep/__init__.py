"""Many plans at once: every combination of what is asked, on all cores or through an engine, into one table."""
