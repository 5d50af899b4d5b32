"""What a question selects: scope, GPU work, and wholes that are divided into parts."""
