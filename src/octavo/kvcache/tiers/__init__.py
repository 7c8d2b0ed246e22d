"""Further tiers of the KV cache, below the pages: blocks that were evicted, and how they come back."""
