"""The numbers of a fitted run, as tables for other tools: examination, documents, predictions. Nothing here trains."""
