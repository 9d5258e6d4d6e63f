"""What the library answers today, committed: its errors on suites of logs, and single answers."""
