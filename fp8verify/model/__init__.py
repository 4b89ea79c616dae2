"""The structs of results: reports, comparisons and tables of runs; `fp8verify.report` writes them."""
