"""`python -m fp8verify` is the console script."""

from fp8verify.cli import main

if __name__ == "__main__":
    main()
