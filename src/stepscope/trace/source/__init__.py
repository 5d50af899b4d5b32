"""Where a trace comes from: a path, a URL or a stream, compressed or not."""
