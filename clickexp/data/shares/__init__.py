"""Logs that several processes read: each a share of the files, whose ids are then joined, and written to one pack."""
