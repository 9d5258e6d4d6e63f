"""One algorithm a file; ``iterate`` is the only outer loop."""
