"""How the forward pass of a step is run on torch: eagerly, or from a captured graph. Knows nothing of sampling.

This file imports nothing: `warm_up` and `interface` serve workers without torch, too.
"""
