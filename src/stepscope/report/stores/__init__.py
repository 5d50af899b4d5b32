"""The stores of traces on disk, one module per output."""
