"""One algorithm per file; ``control.py`` alone ends their work."""
