"""What a program costs, and which is the fastest: cost model, machine models, autotuning."""
