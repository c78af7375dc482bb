"""Memory beside the device's own: where KV goes that the device has no room for. Knows nothing of sequences."""
