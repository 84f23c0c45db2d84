"""What one rank holds under a plan, tensor by tensor: to be compared with what the frameworks really hold."""
