"""What several experiments do in the same way: load, keep, save, draw, say."""
