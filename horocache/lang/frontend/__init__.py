"""The frontend, in which programs are written: chunk references, traces, collectives and topologies."""
