"""Tables of text and numbers, and the forms that readers get them in."""
