"""The stage problem: which layers on which stage under which policy, exactly."""
