"""What an introduction to attention says, made checkable: one idea a module, one experiment each.

Nothing here is a toy on the side: models, prompts, edits, statistics and figures are the library's own.
"""
