"""``horovod.common``: the parts that the bindings of all frameworks share."""
