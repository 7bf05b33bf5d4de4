"""``horocache doctor``: checks of the machine, the libraries and the core."""
