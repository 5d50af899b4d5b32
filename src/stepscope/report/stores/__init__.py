"""The stores of traces on the disk, one module per output."""
