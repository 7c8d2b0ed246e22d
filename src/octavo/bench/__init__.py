"""Measurement: every claim is a ratio in one run. See docs/benchmarking.md; nothing here is imported by serving."""
