"""Rules about the input: batches that come late."""
