"""The door into a model's attention: exact weights, asked and never written down."""
