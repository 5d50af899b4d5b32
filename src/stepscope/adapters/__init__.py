"""Ways into the capture: options in several dialects, launching without code, drop-ins."""
