"""A run owns its folder: lock, manifest, environment, and the same run again."""
