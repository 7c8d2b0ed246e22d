"""The OpenAI-compatible HTTP server. Imports the engine's client, never the engine."""
