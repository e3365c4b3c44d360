"""Many devices and many processes: the mesh, what each holds, and how they stay together."""
