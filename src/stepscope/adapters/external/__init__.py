"""Other profilers, launched by ours: py-spy, nsys and memray, one module each."""
