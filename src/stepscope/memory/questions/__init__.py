"""The questions about a snapshot, one module each: a view in, a frozen result out."""
