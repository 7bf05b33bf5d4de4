"""The command ``horocache``: examines a machine (``doctor``), measures it (``bench``), and reads records of jobs."""
