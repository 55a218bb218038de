"""Where the jobs of a sweep run: processes and devices of this machine, SLURM, Ray. Queues are one folder up."""
