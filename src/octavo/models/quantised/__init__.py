"""Quantised safetensors directories: each format's tensors as matrices in the rows that kernels know, one at a time."""
