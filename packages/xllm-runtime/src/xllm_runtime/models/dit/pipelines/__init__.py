"""One pipeline a family: from a request to the samples that are stepped, and from their latents to pictures."""
