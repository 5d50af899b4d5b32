"""Which collective hangs and who is missing in it, from torch's flight recorder."""
