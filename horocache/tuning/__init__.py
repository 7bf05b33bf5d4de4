"""The tuning suite: measures backends and algorithms, stores their times in a table, and makes selector rules of it."""
