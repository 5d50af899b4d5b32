"""Records steps and windows inside the training process. Imports torch lazily."""
