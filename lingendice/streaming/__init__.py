"""Running streams, and compiled programs that embed the library."""
