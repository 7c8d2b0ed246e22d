"""`octavo bench chaos`: a seeded load on a real server whose engine is made to fail, against the undisturbed run."""
