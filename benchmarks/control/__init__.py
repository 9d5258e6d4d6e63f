"""The control environments of the paper."""
