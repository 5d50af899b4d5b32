"""Rules about the recording itself."""
