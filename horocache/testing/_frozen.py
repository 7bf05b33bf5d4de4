"""The last import of the server that ranks are forked from: the garbage collector leaves alone what is there by then.

A collection writes to each object that it visits, so every rank would copy all pages of torch or TensorFlow.
"""

import gc

gc.collect()
gc.freeze()
