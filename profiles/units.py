"""Unit factors: every figure enters the code in bytes, seconds, FLOP and bytes per second."""

MB = 10**6
GB = 10**9
KIB = 2**10
MIB = 2**20
GIB = 2**30
TERA = 10**12
GBIT = 10**9 // 8
MICROSECOND_S = 1e-6
MILLISECOND_S = 1e-3
