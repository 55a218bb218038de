"""One file per log format: each turns its source into packed sessions. What they share is in `ingest`."""
