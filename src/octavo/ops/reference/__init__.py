"""The reference back end: NumPy, slow and obvious, float32 or rounded where the bf16 path rounds."""
