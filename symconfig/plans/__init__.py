"""The plan: frozen data, its JSON, its history. Imports nothing above descriptor/."""

TOP, MOST_TOP = 5, 1000  # plans that are ranked, by default and at most
