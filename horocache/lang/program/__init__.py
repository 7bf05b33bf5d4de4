"""Programs as data: the instruction DAG, compiled programs, and the layout of chunks."""
