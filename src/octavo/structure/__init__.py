"""Structured outputs: grammars, and the process that computes what they allow."""
