"""How sure a fitted model is: of shared parameters, of each document, and of what follows from them."""
