"""Records of NCCL Inspector, the profiler plugin of NCCL and RCCL that times each collective."""
