"""Timelines and flight records of a job, and their analysis."""
