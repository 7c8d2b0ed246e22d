"""`octavo run` over a file: lines in, answers out, through kills (docs/offline.md)."""
