"""What every way of splitting an operator costs on a mesh: computation, collectives, memory."""
