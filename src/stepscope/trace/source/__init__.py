"""Where traces come from: local files, URLs and streams, compressed or not."""
