"""What a solve returns, and what may be asked of it: intervals, checks, plots."""
