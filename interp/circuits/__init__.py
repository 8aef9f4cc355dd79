"""Is a set of heads enough, and is it needed?"""
