"""What measures: workloads, timing, cost models, tables and plots."""
