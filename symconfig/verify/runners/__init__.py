"""What runs in processes of its own that import a framework: scripts, and what they load by path."""
