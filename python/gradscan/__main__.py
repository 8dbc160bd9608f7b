"""`python -m gradscan`."""

from gradscan.cli import main

if __name__ == "__main__":
    main()
