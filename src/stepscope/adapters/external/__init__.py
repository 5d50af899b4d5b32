"""Other profilers that we launch: py-spy, nsys and memray, one module each."""
