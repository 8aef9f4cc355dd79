"""What a model is given: prompts, and tasks whose answer is known."""
