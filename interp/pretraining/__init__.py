"""The little world, and how the default model is trained on it."""
