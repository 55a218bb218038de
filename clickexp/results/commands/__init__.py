"""What `clickexp-compare` writes and prints."""
