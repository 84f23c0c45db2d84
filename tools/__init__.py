"""What maintainers run: `python -m tools VERB [options]`; without a verb it lists them."""
