"""What `specd bench` runs: workloads, targets of real size, measurement, report."""
