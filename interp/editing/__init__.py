"""Edits as values, metrics, and many edits measured at once."""
