"""Published layouts beside a plan."""
