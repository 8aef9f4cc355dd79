"""What the weights alone say: norms folded in, OV and QK, who reads what whom wrote."""
