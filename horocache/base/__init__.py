"""What every other package may import: texts and files of others, processors, the codes of operations."""
