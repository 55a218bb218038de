"""Output of `clickexp-compare`: files, and lines on the terminal."""
