"""Published measurements that benchmarks compare predictions with; each file names its source."""
