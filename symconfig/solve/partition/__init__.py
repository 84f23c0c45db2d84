"""The free problem: a split for every operator and tensor of a program, on a mesh."""
