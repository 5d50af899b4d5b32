"""Each option of a recording and where its value comes from, one module per output."""
