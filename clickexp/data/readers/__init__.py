"""One file per log format: each turns its source into packed sessions."""
