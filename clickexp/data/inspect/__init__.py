"""What a log is worth before a model sees it: counts, and whether examination can be identified."""
