"""The sampler on numpy's arrays, for workers without torch: the same options, order and random numbers.

Row by row, so that a row's tokens and log-probabilities are its own to the bit, whoever shares the batch.
"""
