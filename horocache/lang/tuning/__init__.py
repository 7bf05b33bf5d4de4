"""Cost of programs: the cost model, machine models, local runs, and the autotuner."""
