"""Networks in compiled loops: GenDICE's Algorithm 1, and what its rivals need of the same machinery."""
