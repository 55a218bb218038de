"""What a fitted run knows, as tables for other tools: examination, documents, predictions. Nothing here trains."""
