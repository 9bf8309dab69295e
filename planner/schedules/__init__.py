"""Pipeline schedules: how long an iteration takes and how many micro-batches are in flight."""
