"""Over which ranges of a job's sizes and a cluster's rates a plan stays the best one."""
