"""The one exception of this package.

Raise it for whatever the user can put right: a name that is not there, a damaged file, a prompt too
long. The message is one line that names the place, says what was expected and what came, and what
to do. The command line prints that line without a traceback; anything else that escapes is a bug of
ours and keeps its traceback.
"""


class InterpError(Exception):
    """An error a user can act on: one line naming place, what was expected, what came, the cure."""


class IncompleteError(InterpError):
    """Part of a run was refused, and what was finished stays: the same command goes on with the rest."""
