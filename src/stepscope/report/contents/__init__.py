"""What a file or directory holds, one module per output."""
