"""From the command line to an exit code: what was asked, checked, run, and said."""
