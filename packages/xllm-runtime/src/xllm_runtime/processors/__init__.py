"""From files and URLs to media that a vision tower can encode: fetch, decode, sample, resize. Only videos import torch.

Runs on the front side, in threads of its own; all input is hostile. What happens to pixels afterwards (normalising, cutting
into patches) is the worker's.
"""
