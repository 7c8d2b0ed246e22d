"""`octavo verify`: the claim that load never changes bits, checked on this machine with the user's model."""
