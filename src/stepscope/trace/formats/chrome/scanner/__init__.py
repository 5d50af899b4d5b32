"""Events scanned and repaired in machine code: bytes in; numbers and places of texts out."""
