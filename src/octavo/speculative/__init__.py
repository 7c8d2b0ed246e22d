"""Guessing tokens ahead (proposers), and checking the guesses. See docs/speculative.md."""
