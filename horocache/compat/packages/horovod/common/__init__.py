"""``horovod.common``: what the bindings of all frameworks share."""
