"""Who runs the tasks: processes of this machine (`local`) or a Ray cluster (`ray_cluster`)."""
