"""Reports on a log: counts, and whether examination can be identified. Nothing here trains or changes it."""
