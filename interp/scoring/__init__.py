"""Where does a head look? Roles, scores, chance and null."""
