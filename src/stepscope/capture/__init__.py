"""Wing 1, inside the training process: what records steps and windows. Imports torch lazily."""
