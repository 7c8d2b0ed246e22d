"""One script for each engine, run under that engine's own Python: the standard library and the engine's API alone."""
