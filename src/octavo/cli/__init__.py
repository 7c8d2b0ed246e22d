"""The octavo command: serve, chat, run, doctor."""
