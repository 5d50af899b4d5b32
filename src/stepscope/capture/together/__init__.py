"""What the ranks of a job and the profilers of a process have to agree on."""
