"""The CPU back end: weights packed for the native kernels, and a recorder onto the native program."""
