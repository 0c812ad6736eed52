"""The pages and tables that show the results of benchmarks."""
