"""The attention sink taken away, and where its mass goes."""
