"""``horocache``: the command that looks at a machine (``doctor``) and measures it (``bench``)."""
