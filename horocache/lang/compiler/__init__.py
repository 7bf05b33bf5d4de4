"""From a written program to a compiled one: fusion, thread blocks, channels, schedule."""
