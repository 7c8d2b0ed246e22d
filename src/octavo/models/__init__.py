"""Models: readers of model files, one short file an architecture, tokenisers."""
