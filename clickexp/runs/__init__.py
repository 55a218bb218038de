"""What a run folder holds: writing, finding and reading results, and the number that a run is judged by."""
