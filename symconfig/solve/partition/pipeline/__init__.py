"""Stages and tensors solved together: Alpa's outer dynamic program over cuts of any graph."""
