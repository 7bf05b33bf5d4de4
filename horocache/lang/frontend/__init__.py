"""How programs are written: chunk references, traces, collectives and topologies."""
