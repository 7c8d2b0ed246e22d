"""One short file an architecture; docs/new-model.md says how to add one."""
