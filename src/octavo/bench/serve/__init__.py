"""`octavo bench serve`: a load generator for any OpenAI-compatible server. See docs/benchmarking.md."""
