"""A page that shows runs: tables, figures, checks, and where chosen heads look."""
