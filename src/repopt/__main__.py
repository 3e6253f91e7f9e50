"""`python -m repopt`, which torchrun needs."""

from repopt.cli import main

if __name__ == "__main__":
    main()
