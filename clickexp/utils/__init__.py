"""Helpers without an opinion on click models: signatures of constructors, paths for messages."""
