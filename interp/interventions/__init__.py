"""Does it matter? Ablation, patching, paths, gradients; weight beside influence."""
