"""Questions asked of traces and runs: pure functions with frozen results, one module each."""
