"""What a run is made of: one frozen, strict, documented model per experiment."""
