"""Programs in files and in memory: JSON, MSCCL-XML, the core's words, drawings."""
