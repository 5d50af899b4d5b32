"""Rules about communication and ranks that wait for each other."""
