"""Freezes all objects of the server that ranks are forked from; the server imports this module last.

A garbage collection writes to each object that it visits, so every rank would copy all pages of torch or TensorFlow.
"""

import gc

gc.collect()
gc.freeze()
