"""``horocacherun``: starts the ranks of a job on this host, forwards their output, and leaves no process behind."""
