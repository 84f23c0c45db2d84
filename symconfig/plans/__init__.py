"""The plan: frozen data, its JSON, its history. Imports nothing above descriptor/."""
