"""A language model, loaded and doubted; its tokens; one forward pass with someone looking."""
