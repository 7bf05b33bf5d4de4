"""The collectives for torch's compiler."""
