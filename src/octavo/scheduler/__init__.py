"""Who runs now: admission, chunk sizes, preemption, and the plan of each step."""
