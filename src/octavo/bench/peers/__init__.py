"""Octavo beside other engines: set up from the package index, loaded together, measured in turns on the same work."""
