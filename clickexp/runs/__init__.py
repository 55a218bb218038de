"""Run folders: writing, finding and reading results, and the number that a run is judged by."""
