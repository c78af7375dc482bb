"""What `benchmarks/cpu.py` is made of: servers side by side, the machine they share, and the work they are given."""
