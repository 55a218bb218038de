"""The launchers of clickexp."""
