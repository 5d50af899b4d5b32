"""The ranks of a run together: who makes the others wait, and what a fix is worth to the job."""
