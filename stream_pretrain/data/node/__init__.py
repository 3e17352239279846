"""Let the processes of one job on one machine work together.

What goes in: the `World` of this process. What comes out: a directory that belongs to the job
(`job_directory`), names in shared memory that no other job uses (`shm_names`), a barrier that
reports failures (`barrier`), log lines for slow waits (`slow_wait_log`) and the check that
streaming and the launcher agree on the ranks (`world_check`).
"""
