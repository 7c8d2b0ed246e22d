"""The op set: one signature an op (base.py), and its back ends reference/ (NumPy) and cpu/ (native kernels)."""
