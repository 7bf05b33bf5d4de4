"""The compiler of programs: fusion, channel assignment, thread blocks, and the schedule."""
