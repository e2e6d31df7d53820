"""`python -m benchmarks`: the benchmark of this issue's surfaces. `--help` lists its options."""

from benchmarks.throughput import main

if __name__ == "__main__":
    main()
