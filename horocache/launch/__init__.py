"""``horocacherun``: starts the ranks of a job on this host, shows their output, and leaves nothing of them behind."""
