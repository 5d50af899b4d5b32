"""Events scanned and mended in machine code: bytes in; numbers and places of texts out."""
