"""The session of this process: init and shutdown, ranks, process sets, and the runtime of the C++ core."""
