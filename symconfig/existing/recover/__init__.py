"""What options mean: the model, the degrees and the switches that they describe. The way back from `render`."""
