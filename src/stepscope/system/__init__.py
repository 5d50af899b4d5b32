"""Facts about the machine, its control groups and this process: nothing here knows of a run."""
