"""Any table: statistics, column contracts, figures. Nothing here knows of a model."""
