"""The verdict on memory snapshots, one module per output."""
