"""Where keys and values live: block pools, block tables, the prefix cache and the manager that is their only door."""
