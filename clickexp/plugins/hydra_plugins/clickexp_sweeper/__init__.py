"""The sweepers of clickexp."""
