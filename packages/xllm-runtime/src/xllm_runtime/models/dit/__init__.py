"""Diffusion transformers and the pipelines around them, from folders in diffusers' layout. Knows nothing of requests."""
