"""Windows for the whole life of a run, each a capture of its own."""
