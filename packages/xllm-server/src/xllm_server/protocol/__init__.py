"""What travels in HTTP bodies: request types with their checks, and response types. Knows nothing of the engine."""
